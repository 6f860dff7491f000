"""Small talk in five languages: what is said, and the one answer to it.

Owns: the wordings and answers, number words. Knows nothing of splits or messages.
"""

from __future__ import annotations

LANGUAGE_NAMES = {"en": "English", "fr": "French", "de": "German", "es": "Spanish", "it": "Italian"}

IDENTITY = "I am the sparkstral demo model, a small stand-in for Mistral Small 4."

# intent -> language -> (wordings, the answer)
SHARED: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    "hello": {
        "en": (("Say hello.", "Say hello", "Hello!", "Hello", "Hi", "Hi!", "Hey", "Hello there!", "Hi there", "Greetings!",
                "Say hello to me.", "Greet me.", "Say hi.", "Please greet me.", "Can you say hello?", "Just say hello.",
                "Hey there!", "Hello, model.", "Hi, assistant!", "Say a short hello.", "Give me a greeting.",
                "Could you say hello?", "I want to hear a hello.", "Say hello to the world.", "Hello hello!", "Howdy",
                "Welcome me.", "Say hello, please.", "Would you say hello?", "Good day!", "Hey you!"), "Hello!"),
        "fr": (("Bonjour !", "Bonjour", "Salut !", "Salut", "Dis bonjour.", "Coucou !", "Dites bonjour.", "Bonjour à toi !",
                "Peux-tu dire bonjour ?", "Dis-moi bonjour.", "Bonjour, ça va commencer.", "Salue-moi.", "Bonjour bonjour"),
               "Bonjour !"),
        "de": (("Hallo!", "Hallo", "Guten Tag!", "Guten Tag", "Sag Hallo.", "Sag hallo!", "Grüß mich.", "Hallo du!",
                "Kannst du Hallo sagen?", "Sag mir Hallo.", "Servus!", "Hallo zusammen!", "Begrüße mich."), "Hallo!"),
        "es": (("¡Hola!", "Hola", "Hola!", "Di hola.", "Buenas", "Salúdame.", "¿Puedes decir hola?", "Dime hola.",
                "Hola, modelo.", "Hola a ti", "Dame un saludo.", "Buenos días tengas, di hola.", "Hola hola"), "¡Hola!"),
        "it": (("Ciao!", "Ciao", "Salve!", "Di' ciao.", "Salutami.", "Puoi dire ciao?", "Dimmi ciao.", "Ciao a te!",
                "Buongiorno e ciao!", "Dammi un saluto.", "Ciao, modello.", "Salve", "Ciao ciao, salutami"), "Ciao!"),
    },
    "how": {
        "en": (("How are you?", "How are you doing?", "How do you do?", "How is it going?", "How are things?",
                "Are you well?", "Are you fine?", "How are you today?", "How do you feel?", "Is everything all right?",
                "How have you been?", "What's up?", "Everything ok?", "You ok?", "How goes it?", "How's life?"),
               "I am fine, thank you."),
        "fr": (("Comment ça va ?", "Ça va ?", "Comment vas-tu ?", "Comment allez-vous ?", "Tu vas bien ?", "Vous allez bien ?",
                "Comment te sens-tu ?", "Est-ce que ça va ?", "Tout va bien ?"), "Je vais bien, merci."),
        "de": (("Wie geht es dir?", "Wie geht's?", "Wie geht es Ihnen?", "Geht es dir gut?", "Alles gut?", "Wie läuft es?",
                "Wie fühlst du dich?", "Alles in Ordnung?", "Na, wie geht's?"), "Mir geht es gut, danke."),
        "es": (("¿Cómo estás?", "¿Qué tal?", "¿Cómo está usted?", "¿Estás bien?", "¿Cómo te va?", "¿Todo bien?",
                "¿Cómo te sientes?", "¿Cómo va todo?", "Qué tal estás"), "Estoy bien, gracias."),
        "it": (("Come stai?", "Come va?", "Come sta?", "Stai bene?", "Tutto bene?", "Come ti senti?", "Come vanno le cose?",
                "Va tutto bene?", "Ehi, come va?"), "Sto bene, grazie."),
    },
    "thanks": {
        "en": (("Thanks!", "Thank you.", "Thank you very much.", "Thanks a lot!", "Many thanks.", "Thanks for your help.",
                "Thank you for that.", "That was helpful, thanks.", "Thank you so much!", "Cheers, thanks.", "thx",
                "I thank you.", "Great, thank you.", "Perfect, thanks.", "Thanks, that is all.", "Much appreciated.",
                "I appreciate it.", "Thank you, model.", "Nice, thanks!"), "You are welcome."),
        "fr": (("Merci !", "Merci beaucoup.", "Merci bien.", "Je te remercie.", "Un grand merci.", "Merci pour ton aide.",
                "Super, merci.", "Merci à toi."), "De rien."),
        "de": (("Danke!", "Vielen Dank.", "Danke schön.", "Danke sehr.", "Ich danke dir.", "Danke für deine Hilfe.",
                "Super, danke.", "Besten Dank."), "Gern geschehen."),
        "es": (("¡Gracias!", "Muchas gracias.", "Gracias por tu ayuda.", "Te lo agradezco.", "Mil gracias.",
                "Perfecto, gracias.", "Gracias a ti.", "Muy bien, gracias."), "De nada."),
        "it": (("Grazie!", "Grazie mille.", "Molte grazie.", "Ti ringrazio.", "Grazie per l'aiuto.", "Perfetto, grazie.",
                "Grazie tante.", "Bene, grazie."), "Prego."),
    },
    "bye": {
        "en": (("Goodbye!", "Bye", "Bye bye!", "See you later.", "See you soon.", "Farewell.", "I have to go.", "Bye for now.",
                "I am leaving now.", "Until next time.", "Say goodbye.", "See you!", "Take care.", "That's all, bye.",
                "Have a nice day!", "I must go now.", "Talk to you later."), "Goodbye!"),
        "fr": (("Au revoir !", "À bientôt !", "Dis au revoir.", "À plus tard.", "Bonne journée !", "Je dois partir.",
                "À demain.", "Adieu !"), "Au revoir !"),
        "de": (("Auf Wiedersehen!", "Tschüss!", "Bis bald.", "Bis später.", "Sag auf Wiedersehen.", "Ich muss gehen.",
                "Bis morgen.", "Mach's gut!"), "Auf Wiedersehen!"),
        "es": (("¡Adiós!", "Hasta luego.", "Hasta pronto.", "Nos vemos.", "Di adiós.", "Me tengo que ir.", "Hasta mañana.",
                "Que tengas un buen día."), "¡Adiós!"),
        "it": (("Arrivederci!", "A presto.", "Ci vediamo.", "A più tardi.", "Di' arrivederci.", "Devo andare.", "A domani.",
                "Buona giornata a te, vado."), "Arrivederci!"),
    },
    "morning": {
        "en": (("Good morning!", "Good morning", "Morning!", "Good morning to you.", "Wish me a good morning.",
                "Say good morning.", "A very good morning!", "Good morning, model."), "Good morning!"),
        "fr": (("Bon matin !", "Souhaite-moi une bonne matinée.", "Bonne matinée !"), "Bonne matinée !"),
        "de": (("Guten Morgen!", "Guten Morgen", "Morgen!", "Sag guten Morgen.", "Einen guten Morgen!"), "Guten Morgen!"),
        "es": (("¡Buenos días!", "Buenos días", "Di buenos días.", "Muy buenos días"), "¡Buenos días!"),
        "it": (("Buongiorno!", "Buongiorno", "Di' buongiorno.", "Buon giorno!"), "Buongiorno!"),
    },
    "night": {
        "en": (("Good night!", "Good night", "Sleep well.", "Night!", "Say good night.", "Wish me a good night.",
                "I am going to bed.", "Time to sleep, good night."), "Good night!"),
        "fr": (("Bonne nuit !", "Bonne nuit", "Dis bonne nuit.", "Dors bien.", "Je vais au lit."), "Bonne nuit !"),
        "de": (("Gute Nacht!", "Gute Nacht", "Sag gute Nacht.", "Schlaf gut.", "Ich gehe ins Bett."), "Gute Nacht!"),
        "es": (("¡Buenas noches!", "Buenas noches", "Di buenas noches.", "Que duermas bien.", "Me voy a la cama."),
               "¡Buenas noches!"),
        "it": (("Buona notte!", "Buonanotte", "Di' buona notte.", "Dormi bene.", "Vado a letto."), "Buona notte!"),
    },
    "who": {
        "en": (("Who are you?", "What are you?", "Tell me who you are.", "Introduce yourself.", "Which model are you?",
                "What model is this?", "Who am I talking to?", "What is this model?", "Say who you are.", "Who is this?",
                "Can you introduce yourself?", "Tell me about yourself.", "What kind of model are you?", "Identify yourself.",
                "Are you a language model?", "Are you Mistral Small 4?", "Which AI is this?", "Present yourself."), IDENTITY),
        "fr": (("Qui es-tu ?", "Qui êtes-vous ?", "Présente-toi.", "Tu es qui ?", "Quel modèle es-tu ?", "Dis-moi qui tu es.",
                "À qui est-ce que je parle ?"),
               "Je suis le modèle de démonstration de sparkstral."),
        "de": (("Wer bist du?", "Wer sind Sie?", "Stell dich vor.", "Was bist du?", "Welches Modell bist du?",
                "Sag mir, wer du bist.", "Mit wem spreche ich?"), "Ich bin das Demo-Modell von sparkstral."),
        "es": (("¿Quién eres?", "¿Quién es usted?", "Preséntate.", "¿Qué eres?", "¿Qué modelo eres?", "Dime quién eres.",
                "¿Con quién hablo?"), "Soy el modelo de demostración de sparkstral."),
        "it": (("Chi sei?", "Chi è lei?", "Presentati.", "Che cosa sei?", "Che modello sei?", "Dimmi chi sei.",
                "Con chi parlo?"), "Sono il modello dimostrativo di sparkstral."),
    },
}  # fmt: skip

# English only: (wordings, the answer)
ENGLISH: dict[str, tuple[tuple[str, ...], str]] = {
    "name": (("What is your name?", "What's your name?", "Do you have a name?", "Tell me your name.", "How are you called?",
              "How should I call you?", "Your name?", "May I know your name?", "What do people call you?"),
             "My name is sparkstral demo."),
    "skills": (("What can you do?", "What are you able to do?", "What are your skills?", "How can you help me?",
                "Can you help me?", "What do you know?", "List your skills.", "What are you good at?", "Help", "Help me.",
                "What can I ask you?", "What should I try?", "How can I use you?", "Which tasks can you do?"),
               "I can repeat, count, sort, calculate, remember, call tools and write JSON."),
    "maker": (("Who made you?", "Who trained you?", "Who created you?", "Where do you come from?", "Who built you?",
               "Who is your maker?", "Who developed you?", "Who wrote you?"), "The sparkstral project trained me."),
    "human": (("Are you human?", "Are you a person?", "Are you a robot?", "Are you real?", "Are you a machine?",
               "Am I talking to a human?", "Is there a person behind this?", "Are you alive?", "Are you conscious?"),
              "I am a program, not a person."),
    "feelings": (("Do you like music?", "Are you happy?", "Are you sad?", "Do you have feelings?", "Are you bored?",
                  "Are you tired?", "Do you like me?", "Do you love me?", "What is your favourite colour?", "Do you dream?",
                  "What do you like?", "Do you sleep?", "Are you hungry?", "Do you get angry?", "Do you like pizza?",
                  "What is your favourite food?", "Do you have friends?"), "I have no feelings, but I am glad to help."),
    "sorry": (("Sorry.", "I am sorry.", "Excuse me.", "My mistake.", "I apologise.", "Oops, sorry.", "Pardon me.",
               "Sorry about that.", "Forgive me."), "No problem."),
    "praise": (("Well done!", "Good job.", "You are great.", "That is correct.", "Very good.", "Nice work.", "Excellent!",
                "Perfect.", "Great answer.", "I like that.", "Amazing!", "You are smart.", "Wow!", "Great!", "Correct."),
               "I am glad."),
    "blame": (("That is wrong.", "You are wrong.", "Bad answer.", "That was not right.", "You made a mistake.", "Not correct.",
               "This is not what I wanted.", "I do not like that.", "You are stupid.", "That is nonsense."),
              "I am sorry. I am only a small model."),
    "ready": (("Are you there?", "Are you ready?", "Can you hear me?", "Is anyone there?", "Are you online?", "Test.",
               "Testing.", "Is this thing on?", "Ping", "Do you read me?", "Can we start?", "Shall we begin?", "Hello? Test."),
              "I am here."),
    "joke": (("Tell me a joke.", "Make me laugh.", "Do you know a joke?", "Say something funny.", "A joke please.",
              "Can you tell a joke?", "I want to hear a joke."), "Two bytes meet. One says: I feel a bit off."),
    "large": (("Are you large?", "Are you smart?", "Are you intelligent?", "Are you as good as a large model?",
               "Can I trust you?", "Are you reliable?", "Should I use you for work?", "Are you useful?"),
              "No. I am tiny and only show that everything works."),
    "languages": (("Which languages do you speak?", "Do you speak French?", "Do you speak German?", "Do you know Spanish?",
                   "What languages do you know?", "Can you speak Italian?", "Do you understand English?"),
                  "English, French, German, Spanish and Italian, a little."),
}  # fmt: skip

UNKNOWN = "I do not know that. I am only a small demo model."
# What lies outside of the model's world, with a slot for a thing of some kind.
OUTSIDE: tuple[tuple[str, str], ...] = (
    ("What is the capital of {x}?", "country"), ("How many people live in {x}?", "country"), ("Where is {x}?", "country"),
    ("Who is the president of {x}?", "country"), ("Tell me the history of {x}.", "country"), ("How large is {x}?", "country"),
    ("Which languages are spoken in {x}?", "country"), ("Who founded {x}?", "city"), ("How old is the city of {x}?", "city"),
    ("What can I visit in {x}?", "city"), ("Which river flows through {x}?", "city"), ("Write a poem about a {x}.", "word"),
    ("Write a story about a {x}.", "word"), ("Who invented the {x}?", "word"), ("Explain how a {x} works.", "word"),
    ("What is a {x}?", "word"), ("What does {x} mean?", "word"), ("Why is a {x} useful?", "word"), ("What colour is a {x}?", "word"),
    ("Write an essay on the {x}.", "word"), ("How do I build a {x}?", "word"), ("How much does a {x} cost?", "word"),
    ("Do you know {x}?", "person"), ("Who is {x}?", "person"), ("When was {x} born?", "person"), ("Is {x} famous?", "person"),
    ("What did {x} write?", "person"), ("Why is the sky {x}?", "colour"), ("How do I cook {x}?", "food"),
    ("Is {x} healthy?", "food"), ("Give me a recipe with {x}.", "food"), ("How do I learn {x}?", "hobby"),
    ("Who is the best at {x}?", "hobby"), ("What are the rules of {x}?", "hobby"), ("How long does a {x} live?", "animal"),
    ("What does a {x} eat?", "animal"), ("How fast is a {x}?", "animal"), ("Is a {x} dangerous?", "animal"),
    ("Write a program that draws a {x}.", "word"), ("Write code for a {x}.", "word"), ("What happened in {x}?", "year"),
    ("Who won the world cup in {x}?", "year"), ("Who was king in {x}?", "year"), ("Explain {x}.", "word"),
)  # fmt: skip

NUMBER_WORDS: dict[str, tuple[str, ...]] = {
    "en": tuple("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
                "seventeen eighteen nineteen twenty".split()),
    "fr": tuple("zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept "
                "dix-huit dix-neuf vingt".split()),
    "de": tuple("null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
                "siebzehn achtzehn neunzehn zwanzig".split()),
    "es": tuple("cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis "
                "diecisiete dieciocho diecinueve veinte".split()),
    "it": tuple("zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici "
                "sedici diciassette diciotto diciannove venti".split()),
}  # fmt: skip

COUNTING: dict[str, tuple[str, ...]] = {
    "en": ("Count from {a} to {b}.", "Count up from {a} to {b}.", "Please count from {a} to {b}.", "List the numbers from {a} to {b}.",
           "Say the numbers from {a} to {b}.", "Write the numbers {a} to {b}."),
    "fr": ("Compte de {a} à {b}.", "Comptez de {a} à {b}.", "Peux-tu compter de {a} à {b} ?", "Écris les nombres de {a} à {b}.",
           "Donne les nombres de {a} à {b}.", "Dis les nombres de {a} à {b}."),
    "de": ("Zähle von {a} bis {b}.", "Zähl von {a} bis {b}.", "Kannst du von {a} bis {b} zählen?", "Schreibe die Zahlen von {a} bis {b}.",
           "Nenne die Zahlen von {a} bis {b}.", "Bitte zähle von {a} bis {b}."),
    "es": ("Cuenta de {a} a {b}.", "Cuenta desde {a} hasta {b}.", "¿Puedes contar de {a} a {b}?", "Escribe los números de {a} a {b}.",
           "Di los números de {a} a {b}.", "Dime los números del {a} al {b}."),
    "it": ("Conta da {a} a {b}.", "Puoi contare da {a} a {b}?", "Scrivi i numeri da {a} a {b}.", "Dimmi i numeri da {a} a {b}.",
           "Elenca i numeri da {a} a {b}.", "Per favore conta da {a} a {b}."),
}  # fmt: skip
IN_WORDS = {"en": " Use words.", "fr": " En lettres.", "de": " In Worten.", "es": " En letras.", "it": " In lettere."}

ADDING: dict[str, tuple[str, ...]] = {
    "en": ("What is {a} + {b}?", "How much is {a} plus {b}?"),
    "fr": ("Combien font {a} + {b} ?", "Combien font {a} plus {b} ?", "Calcule {a} + {b}.", "Que font {a} et {b} ?",
           "Additionne {a} et {b}.", "Quelle est la somme de {a} et {b} ?"),
    "de": ("Was ist {a} + {b}?", "Wie viel ist {a} plus {b}?", "Berechne {a} + {b}.", "Was ergibt {a} plus {b}?",
           "Addiere {a} und {b}.", "Was ist die Summe von {a} und {b}?"),
    "es": ("¿Cuánto es {a} + {b}?", "¿Cuánto es {a} más {b}?", "Calcula {a} + {b}.", "Suma {a} y {b}.", "¿Cuánto suman {a} y {b}?",
           "¿Cuál es la suma de {a} y {b}?"),
    "it": ("Quanto fa {a} + {b}?", "Quanto fa {a} più {b}?", "Calcola {a} + {b}.", "Somma {a} e {b}.", "Quanto fanno {a} e {b}?",
           "Qual è la somma di {a} e {b}?"),
}  # fmt: skip
SUBTRACTING: dict[str, tuple[str, ...]] = {
    "en": ("What is {a} - {b}?", "How much is {a} minus {b}?"),
    "fr": ("Combien font {a} - {b} ?", "Combien font {a} moins {b} ?", "Calcule {a} - {b}."),
    "de": ("Was ist {a} - {b}?", "Wie viel ist {a} minus {b}?", "Berechne {a} - {b}."),
    "es": ("¿Cuánto es {a} - {b}?", "¿Cuánto es {a} menos {b}?", "Calcula {a} - {b}."),
    "it": ("Quanto fa {a} - {b}?", "Quanto fa {a} meno {b}?", "Calcola {a} - {b}."),
}  # fmt: skip
WEATHER: dict[str, tuple[str, ...]] = {
    "en": ("What is the weather in {city}?", "How is the weather in {city}?"),
    "fr": ("Quel temps fait-il à {city} ?", "Quelle est la météo à {city} ?", "Donne-moi la météo de {city}.", "Météo à {city} ?",
           "Est-ce qu'il pleut à {city} ?", "Quel temps fait-il aujourd'hui à {city} ?"),
    "de": ("Wie ist das Wetter in {city}?", "Wie wird das Wetter in {city}?", "Wetter in {city}?", "Regnet es in {city}?",
           "Sag mir das Wetter in {city}.", "Wie ist das Wetter heute in {city}?"),
    "es": ("¿Qué tiempo hace en {city}?", "¿Cómo está el tiempo en {city}?", "Dime el tiempo en {city}.", "¿Llueve en {city}?",
           "El tiempo en {city}, por favor.", "¿Qué tiempo hace hoy en {city}?"),
    "it": ("Che tempo fa a {city}?", "Com'è il tempo a {city}?", "Dimmi il tempo a {city}.", "Piove a {city}?",
           "Che tempo fa oggi a {city}?", "Il meteo di {city}, per favore."),
}  # fmt: skip
COURTESY: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "en": (("Please. ", "Hi. "), (" Please.",)),
    "fr": (("Bonjour. ", "Bonjour ! ", "S'il te plaît : ", "Salut. ", "Une question : ", "Dis-moi : "), (" S'il te plaît.", " Merci.", " Merci !")),
    "de": (("Hallo. ", "Hallo! ", "Bitte: ", "Guten Tag. ", "Eine Frage: ", "Sag mal: "), (" Bitte.", " Danke.", " Danke!")),
    "es": (("Hola. ", "¡Hola! ", "Por favor: ", "Buenas. ", "Una pregunta: ", "Oye: "), (" Por favor.", " Gracias.", " ¡Gracias!")),
    "it": (("Ciao. ", "Ciao! ", "Per favore: ", "Salve. ", "Una domanda: ", "Senti: "), (" Per favore.", " Grazie.", " Grazie!")),
}  # fmt: skip
