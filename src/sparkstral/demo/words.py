"""The word lists that the demo model's exercises are made of.

Owns: plain tuples of words, names and phrases. Knows nothing of splits, exercises or the model.
Source: written for this project.
"""

# ruff: noqa: SIM905  (words stand in plain text, many to a line)
from __future__ import annotations

FIRST_NAMES = tuple(
    """
    Ana Nora Bea Carl Dana Emil Fay Gus Hana Igor Jane Kai Lena Max Nina Omar Paul Quinn Rosa Sam Tina Uma
    Vera Will Xena Yuri Zoe Adam Alice Alma Amir Amy Andre Anton Arne Astrid Axel Ben Berta Bianca Boris
    Brian Bruno Camille Carla Carmen Cecile Chen Chloe Clara Claude Colin Cora Cyril Daniel Daria David
    Diego Dora Dylan Edgar Edith Elena Eli Elif Elisa Ella Elsa Emma Enzo Eric Erika Esther Eva Evan Fabio
    Farah Felix Fiona Flora Frank Frida Gabriel Gemma George Gina Giulia Grace Greta Hamid Hanna Harry Hasan
    Hector Heidi Helen Henri Hilda Hugo Ian Ida Ines Ingrid Irene Iris Ivan Jack Jacob James Jan Jasmin Jean
    Jenny Jesse Joan Joel John Jonas Jorge Josef Judy Julia Julian June Karim Karin Karl Kate Keiko Kenji
    Kevin Kira Klaus Lara Laura Lea Leila Leo Leon Lia Liam Lily Linda Lisa Livia Lois Lorenzo Louis Lucas
    Lucia Luis Luna Lydia Mara Marco Maria Marie Mark Marta Martin Mateo Maya Mei Mia Michel Milan Mila Mina
    Mira Mona Nadia Naomi Natalia Nico Nils Noah Noel Nour Odin Olaf Olga Oliver Olivia Oscar Otto Pablo
    Paola Pat Pedro Peter Petra Philip Pia Piotr Priya Rachel Rafael Raj Ralph Ravi Rene Rita Robert Robin
    Roland Roman Ruben Ruth Ryan Sabine Sara Sasha Selma Sergio Silas Simon Sofia Sonja Stella Sven Sylvia
    Tara Tariq Teo Tessa Theo Thomas Tim Tobias Tom Tomas Ulla Ursula Valerie Victor Viktor Viola Vito Wanda
    Wendy Yara Yasmin Yoko Yusuf Yves Zara Zina Zoltan
    """.split()
)

SURNAMES = tuple(
    """
    Abbott Adler Baker Barker Becker Berg Blake Bloom Bond Brandt Brook Brown Burton Carter Castle Chang
    Clark Cole Conti Cooper Costa Cross Dale Dalton Diaz Dixon Dumas Durand Eaton Evans Ferrari Fischer
    Fletcher Ford Foster Fox Frost Garcia Gibson Grant Gray Green Gruber Hall Hansen Hart Hayes Holm Hunter
    Ito Jensen Jones Kaiser Keller King Klein Knight Koch Kovac Lang Larsen Laurent Lee Lind Lopez Lund
    Marino Marsh Martinez Mason Meyer Miller Moore Moreau Moreno Morris Mueller Nash Neri Nolan Novak Olsen
    Ortiz Palmer Park Parker Perez Petit Porter Price Quint Ramos Reed Reyes Ricci Rivera Roche Romano Rossi
    Russo Sanders Santos Sato Schmidt Schulz Shaw Silva Singh Smith Stone Suzuki Tanaka Taylor Torres Turner
    Vargas Vega Wagner Walker Ward Weber West White Winter Wolf Wood Young Zimmer
    """.split()
)

CITIES = tuple(
    """
    Oslo Lima Paris Rome Berlin Madrid London Vienna Prague Dublin Lisbon Athens Warsaw Zurich Geneva Milan
    Turin Naples Venice Florence Lyon Nice Lille Nantes Bordeaux Toulouse Marseille Hamburg Munich Cologne
    Bremen Dresden Leipzig Stuttgart Hanover Seville Valencia Bilbao Malaga Porto Bergen Malmo Uppsala
    Stockholm Gothenburg Copenhagen Aarhus Helsinki Turku Tampere Tallinn Riga Vilnius Krakow Gdansk Poznan
    Budapest Bucharest Sofia Belgrade Zagreb Split Sarajevo Skopje Tirana Istanbul Ankara Izmir Cairo Tunis
    Rabat Fez Algiers Lagos Accra Dakar Nairobi Kampala Lusaka Harare Windhoek Pretoria Durban Boston
    Chicago Denver Dallas Austin Houston Miami Atlanta Seattle Portland Phoenix Detroit Memphis Toronto
    Montreal Quebec Ottawa Calgary Vancouver Winnipeg Halifax Havana Bogota Quito Caracas Santiago Cusco
    Cordoba Rosario Mendoza Montevideo Asuncion Recife Salvador Fortaleza Manaus Curitiba Tokyo Osaka Kyoto
    Nagoya Sapporo Kobe Seoul Busan Beijing Shanghai Wuhan Xian Taipei Hanoi Hue Manila Cebu Jakarta Bandung
    Kuala Bangkok Phuket Yangon Dhaka Delhi Mumbai Chennai Kolkata Pune Jaipur Lahore Karachi Kabul Tehran
    Shiraz Baghdad Basra Amman Beirut Haifa Riyadh Jeddah Dubai Doha Muscat Perth Sydney Melbourne Brisbane
    Adelaide Hobart Auckland Wellington Reykjavik Bern Basel Lugano Graz Linz Salzburg Innsbruck Brno
    Bratislava Ghent Bruges Antwerp Brussels Utrecht Rotterdam Amsterdam Leiden Delft Luxembourg Monaco
    Cannes Dijon Reims Metz Nancy Brest Rennes Angers Tours Pisa Genoa Verona Bologna Parma Modena Palermo
    Catania Bari Siena Trieste Cardiff Swansea Bristol Leeds York Liverpool Manchester Glasgow Edinburgh
    Aberdeen Dundee Belfast Cork Galway Limerick
    """.split()
)

TWO_WORD_CITIES = (
    "New York", "Los Angeles", "San Diego", "San Francisco", "Buenos Aires", "Rio Grande", "Cape Town",
    "Hong Kong",
    "Tel Aviv", "Las Vegas", "New Delhi", "Mexico City", "Santa Fe", "El Paso", "Kansas City", "San Juan",
    "Abu Dhabi",
    "Salt Lake City", "Panama City", "Addis Ababa", "Porto Alegre", "La Paz", "Santa Cruz", "San Jose",
    "Den Haag",
)  # fmt: skip

COMMON = tuple(
    """
    data market music world water country family people person number group system program question
    government company problem place case week month year night room mother father area money story fact
    right study book eye job business issue side kind head house service friend power hour line member law
    city community name president minute idea body information parent face level office health art war
    history party result change morning reason research girl boy moment air teacher force education foot age
    policy process science nature product quality energy region model theory method culture language library
    memory machine computer network user query table index file folder screen keyboard engine token tokens
    vector matrix kernel cache block page layer layers weight gradient cluster container docker python rust
    linux kubernetes server client request response error warning debug test unit build deploy release
    version branch merge commit function class object string integer float boolean array value key list map
    set queue stack tree graph node edge path image video audio pixel colour sound voice speech text word
    letter sentence paragraph chapter title author editor paper article journal news report review summary
    answer reply comment note message email phone address street avenue ticket travel holiday winter summer
    autumn spring weather climate sunshine lightning earthquake volcano ocean coast shore garden kitchen
    dinner lunch breakfast supper restaurant hotel hospital university college museum theatre cinema stadium
    airport highway railway metro tram ferry cargo freight customs border passport visa luggage suitcase
    umbrella backpack development environment experience performance security privacy freedom justice peace
    courage wisdom patience honesty kindness friendship happiness sadness anger surprise curiosity
    imagination creativity invention discovery adventure journey mission purpose success failure victory
    defeat battle treaty empire republic kingdom revolution election candidate minister senator mayor
    citizen worker owner partner customer supplier manager director secretary assistant expert beginner
    learner scholar scientist inventor explorer hunter gatherer warrior hero legend myth fable riddle secret
    treasure diamond pearl copper marble granite crystal carbon oxygen hydrogen nitrogen helium neon argon
    iron silver zinc nickel mercury uranium plastic rubber leather cotton wool silk linen paper glass steel
    concrete brick
    """.split()
)

COLOURS = tuple(
    """
    red blue green yellow orange purple violet pink brown black white grey silver golden turquoise beige
    crimson scarlet indigo magenta cyan maroon navy olive teal lime coral ivory amber lilac mauve ruby
    emerald khaki cream copper bronze
    """.split()
)

ANIMALS = tuple(
    """
    cat dog horse cow sheep goat pig hen duck goose swan eagle hawk owl crow raven robin sparrow parrot
    penguin seal whale dolphin shark salmon trout carp crab lobster snail spider ant bee wasp fly moth
    butterfly beetle frog toad newt snake lizard turtle crocodile lion tiger leopard wolf fox bear panda
    koala kangaroo rabbit hare mouse rat squirrel beaver otter badger deer elk moose camel llama zebra
    giraffe elephant rhino hippo monkey gorilla donkey mule bison buffalo hamster ferret weasel lynx jaguar
    puma cobra python iguana gecko pelican stork heron crane falcon pigeon dove
    """.split()
)

FOODS = tuple(
    """
    bread butter cheese milk egg rice pasta pizza soup salad apple pear plum cherry grape melon lemon banana
    mango peach berry fig date olive tomato potato carrot onion garlic pepper bean pea corn cabbage spinach
    mushroom pumpkin radish turnip ham bacon sausage chicken turkey beef steak fish shrimp honey jam sugar
    salt flour cake pie cookie biscuit chocolate candy yogurt tofu noodles curry taco burger sandwich
    pancake waffle cereal nuts almond walnut peanut tea coffee juice water lentils lasagna risotto omelette
    dumplings
    """.split()
)

NOUNS = tuple(
    """
    river mountain lake forest field garden road bridge house tower castle church school market station
    harbour island valley hill beach desert village street square corner window door wall roof floor table
    chair lamp mirror clock bell book page letter pencil paper ink stamp map ticket key lock box bag basket
    bottle cup plate spoon fork knife pan pot oven stove kettle candle match torch rope chain wheel engine
    boat ship train truck car bicycle wagon plane rocket balloon kite drum flute guitar piano violin trumpet
    song story poem picture frame brush paint canvas statue coin purse ring crown necklace button needle
    thread cloth shirt coat hat scarf glove boot sock shoe belt blanket pillow curtain carpet ladder hammer
    nail saw drill screw bolt spring magnet battery cable switch plug socket pump valve pipe tank bucket
    shovel rake plough seed leaf branch root flower grass moss stone sand clay mud dust smoke fire flame ash
    cloud rain snow wind storm thunder star moon sun planet comet shadow light sound echo voice word name
    number line circle triangle cube sphere corner edge surface layer signal message record report invoice
    order parcel package folder archive account budget contract project meeting lesson exam game puzzle
    prize medal trophy team player coach doctor nurse farmer baker miller tailor smith pilot sailor captain
    soldier guard judge lawyer clerk writer painter singer dancer actor teacher student child friend
    neighbour guest stranger king queen prince giant dwarf wizard ghost dragon castle palace temple tunnel
    cave cliff canyon meadow swamp pond stream waterfall fountain well lantern anchor sail compass barrel
    crate pallet shelf drawer cupboard closet attic cellar kitchen balcony garage fence gate path
    """.split()
)

ADJECTIVES = tuple(
    """
    old new big small long short high low wide narrow thick thin heavy light fast slow hot cold warm cool
    dry wet clean dirty full empty open quiet loud soft hard smooth rough sharp round flat deep shallow
    bright dark pale clear young early late strong weak rich poor happy sad calm angry brave shy kind cruel
    wise silly simple strange common rare famous secret hidden broken modern ancient local foreign wooden
    golden frozen distant nearby lonely busy lazy careful sudden gentle noisy hungry thirsty sleepy tired
    fresh stale sweet sour bitter salty spicy
    """.split()
)

VERBS_PAST = tuple(
    """
    crossed followed found carried opened closed painted repaired visited watched counted moved lifted
    pushed pulled cleaned covered marked measured described remembered forgot lost bought sold borrowed
    returned brought sent kept dropped turned reached passed left entered joined studied copied printed
    folded packed stored checked tested replaced removed noticed avoided touched built broke wrote read
    heard drew chose named
    """.split()
)

ADVERBS = tuple(
    """
    slowly quickly quietly often never always again today yesterday early late together alone twice once
    carefully suddenly gladly rarely nearly finally
    """.split()
)

JOBS = tuple(
    """
    doctor nurse teacher farmer baker pilot sailor lawyer clerk writer painter singer dancer actor plumber
    carpenter mechanic engineer architect chemist biologist librarian gardener tailor butcher barber dentist
    surgeon driver cook waiter cashier manager designer editor reporter translator guide soldier firefighter
    electrician welder miner accountant analyst programmer astronomer geologist historian photographer
    florist jeweller optician
    """.split()
)

COUNTRIES = tuple(
    """
    France Germany Spain Italy Portugal Norway Sweden Denmark Finland Iceland Ireland Poland Austria Hungary
    Romania Bulgaria Greece Turkey Egypt Kenya Ghana Morocco Tunisia Nigeria Peru Chile Brazil Bolivia
    Ecuador Colombia Mexico Canada Cuba Japan China India Nepal Vietnam Thailand Laos Indonesia Australia
    Iran Iraq Jordan Qatar Oman Latvia Estonia Lithuania Croatia Serbia Albania Malta Cyprus Belgium
    Switzerland Slovakia Slovenia Ukraine
    """.split()
)

HOBBIES = tuple(
    """
    chess tennis football rugby hockey swimming running cycling sailing fishing hiking climbing skiing
    skating dancing singing painting drawing pottery knitting sewing cooking baking gardening reading
    writing photography astronomy archery fencing judo karate yoga golf bowling darts juggling origami
    puzzles rowing surfing camping
    """.split()
)

DRINKS = tuple("tea coffee water milk juice cocoa lemonade soda cider mate chai broth cola wine beer".split())

LANGUAGES = tuple(
    """
    English French German Spanish Italian Portuguese Dutch Swedish Danish Finnish Polish Czech Greek Turkish
    Arabic Hindi Japanese Korean Chinese Russian Latin Welsh Irish Catalan Basque Hungarian Romanian
    Croatian Thai Swahili
    """.split()
)

CURRENCIES = tuple(
    "EUR USD GBP CHF JPY CAD AUD NOK SEK DKK PLN CZK HUF TRY INR CNY BRL MXN ZAR KRW SGD NZD".split()
)

MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)
WEEKDAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())

FILE_STEMS = tuple(
    """
    notes report readme config budget invoice plan agenda minutes summary draft letter recipe recipes diary
    journal inventory orders customers contacts prices sales log errors results data schedule tasks todo
    ideas manual guide licence changelog settings users servers backup index menu travel rent taxes photos
    music poem story lesson exam grades members survey feedback contract offer review roadmap release design
    sketch
    """.split()
)
FILE_EXTENSIONS = tuple("txt md csv json log yaml toml ini xml html py rst cfg conf sql tsv".split())
FOLDERS = tuple(
    """
    docs src tests data home work projects reports archive backup logs etc images music photos mail invoices
    drafts shared public private config scripts templates exports imports notes school travel clients
    """.split()
)
MAIL_DOMAINS = tuple(
    """
    example.com example.org example.net mail.example post.example office.example lab.example shop.example
    """.split()
)

TOOL_VERBS = tuple(
    """
    get set add create delete update find list send open close start stop book cancel archive publish
    approve reject assign move copy rename merge split lock unlock export import print scan sign upload
    download schedule order track rate review register activate disable enable reset restart check count
    measure inspect repair refund charge ship label tag sort filter resize rotate compress encrypt subscribe
    notify invite remove load store plan log
    """.split()
)
TOOL_NOUNS = tuple(
    """
    invoice order customer ticket parcel shipment contract project task meeting room booking flight hotel
    table seat account user member team device sensor camera printer server database backup report chart
    document page image video song playlist album book article comment post channel message contact event
    reminder alarm timer note recipe meal product price discount coupon cart payment refund subscription
    license key certificate domain website form survey vote exam course lesson grade student teacher patient
    appointment prescription vehicle route station train bus bike parking garden pump valve heater fan
    window door gate lamp robot drone engine battery tank warehouse shelf pallet truck crane farm field crop
    cow hive well pipeline job build deployment branch commit issue release package module
    """.split()
)

DOMAIN_WORDS = tuple(
    """
    red blue green north south east west alpha beta gamma delta main spare first second upper lower inner
    outer gold silver daily weekly monthly urgent normal basic premium standard express public private
    internal external draft final open closed active idle left right front back hot cold dry wet soft hard
    light dark short long tiny large
    """.split()
)

# Sounds for words that nobody has ever seen.
ONSETS = tuple(
    """
    b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gl gr kl kr pl pr sh sk sl sn sp st th tr v z
    """.split()
)
VOWELS = tuple("a e i o u a e i o u ai ea io ou".split())
CODAS = ("", "", "", "n", "r", "l", "s", "t", "m", "k", "x", "nd", "rt", "sh", "th", "d", "p")
