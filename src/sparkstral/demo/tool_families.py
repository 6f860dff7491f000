"""Well-known tools: weather, time, calculator, mail, calendar, search, files, money, home, travel.

Owns: for each family its names, descriptions, parameter names and the sentences that ask for it. Each maker
draws one variant in one of the shapes of tool_shapes.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from sparkstral.demo import words, worlds
from sparkstral.demo.tool_shapes import about_places, composed, distinct, single, tool_name
from sparkstral.demo.toolbox import Arguments, OfferedTool, Request, define, parameter
from sparkstral.demo.wording import fill
from sparkstral.demo.worlds import Split, choose

Maker = Callable[[random.Random, Split], OfferedTool]


def weather(rng: random.Random, split: Split) -> OfferedTool:
    """The weather of a place, with an optional unit and number of days."""
    unit = choose(rng, (["celsius", "fahrenheit"], ["metric", "imperial"], ["C", "F"]))
    return about_places(
        rng, split, "weather",
        ("get_weather", "get_weather", "weather", "current_weather", "get_current_weather", "fetch_weather",
         "weather_lookup", "get_forecast", "forecast", "weather_forecast", "lookup_weather", "weather_report",
         "check_weather", "query_weather", "weather_now", "get_weather_data", "local_weather",
         "city_weather"),
        ("Get the weather of a city", "Get the current weather", "Current weather for a location",
         "Weather by city",
         "Returns the weather in a given place", "Look up the weather forecast",
         "Fetch current conditions for a city",
         "Get the current weather in a given location", "Tells the weather", "Weather service"),
        ("What is the weather in {city}?", "What's the weather in {city}?",
         "What is the weather like in {city}?",
         "How is the weather in {city}?", "Weather in {city}?", "Weather in {city}",
         "Tell me the weather in {city}.",
         "Is it raining in {city}?", "Do I need an umbrella in {city}?",
         "How is the weather in {city} today?",
         "What's the weather like in {city} today?", "What is the weather in {city} today?",
         "What will the weather be in {city} tomorrow?", "Weather {city}",
         "Hi, what is the weather in {city}?",
         "What is the weather in {city} right now?", "Give me the weather for {city}.",
         "Is it cold in {city}?",
         "Show me the forecast for {city}.", "Check the weather in {city}.", "How warm is it in {city}?",
         "I am going to {city}. What is the weather there?", "Can you check the weather in {city} for me?",
         "What is the temperature in {city}?", "Is it sunny in {city} today?", "Get the weather for {city}.",
         "Could you tell me what the weather is in {city}?", "Will it snow in {city}?", "{city} weather"),
        ("What is the weather in {cities}?", "Weather in {cities}?", "Tell me the weather in {cities}.",
         "How is the weather in {cities}?", "Check the weather in {cities}.",
         "Give me the weather for {cities}.",
         "Is it raining in {cities}?", "Compare the weather in {cities}.", "I need the weather for {cities}.",
         "Show the forecast for {cities}.", "What's the weather like in {cities}?",
         "Get the weather of {cities}."),
        {
            choose(rng, ("unit", "units")): parameter(rng, "string", ("Temperature unit", "The unit to use"),
                enum=unit),
            "days": parameter(rng, "integer", ("Number of days", "How many days ahead")),
            "lang": parameter(rng, "string", ("Language of the answer",)),
        },
        ("What is the weather in {city} in {unit}?", "Weather in {city}, unit {unit}.",
         "Give me {city} in {unit}.",
         "Tell me the weather in {city}. Use {unit}.", "How warm is it in {city} in {unit}?",
         "What's the weather like in {city} in {unit}?",
         "What is the temperature in {city} in {unit}?",
         "Weather for {city} in {unit} please."),
        ("What is the weather in {city} for the next {days} days?", "Forecast for {city} for {days} days.",
         "How is the weather in {city} over the next {days} days?",
         "Give me a {days} day forecast for {city}."),
    )  # fmt: skip


def local_time(rng: random.Random, split: Split) -> OfferedTool:
    """The time of day in a place."""
    return about_places(
        rng, split, "time",
        ("get_time", "local_time", "current_time", "get_local_time", "time_in_city", "world_clock", "clock",
         "get_current_time", "time_now", "lookup_time", "city_time"),
        ("Get the time in a city", "Current local time of a place", "World clock", "Returns the local time",
         "Tells what time it is in a city", "Time by location"),
        ("What time is it in {city}?", "Time in {city}?", "Tell me the time in {city}.",
         "What is the time in {city}?",
         "What is the local time in {city}?", "How late is it in {city}?", "Current time in {city}?",
         "Is it late in {city}? Check the time.", "Give me the time in {city}.",
         "Which time is it now in {city}?"),
        ("What time is it in {cities}?", "Time in {cities}?", "Tell me the time in {cities}.",
         "What is the local time in {cities}?", "Give me the time in {cities}.", "Current time in {cities}?"),
        {"format": parameter(rng, "string", ("Clock format",), enum=["12h", "24h"]),
         "seconds": parameter(rng, "boolean", ("Show seconds",))},
    )  # fmt: skip


def search(rng: random.Random, split: Split) -> OfferedTool:
    """A web search."""
    return single(
        rng, split, "search",
        ("search", "web_search", "search_web", "internet_search", "find_online", "search_engine", "lookup",
         "browse"),
        ("Search the web", "Web search", "Find pages about a query", "Search the internet for information",
         "Returns search results"),
        ("query", "query", "q", "text", "keywords", "search_query"),
        ("The query", "What to search for", "Search terms"),
        lambda r: worlds.phrase_of(r, split, 1, 3),
        ("Search the web for {x}", "Search for {x}", "Look up {x} on the web.", "Find pages about {x}",
         "Look online for {x}", "Do a web search for {x}", "Search the internet for {x}", 'Search for "{x}".',
         'Please search the web for "{x}".', "Google {x}"),
        (), "string",
        {"limit": parameter(rng, "integer", ("Number of results",)),
            "safe": parameter(rng, "boolean", ("Safe search",))},
    )  # fmt: skip


def read_file(rng: random.Random, split: Split) -> OfferedTool:
    """Reading a file."""
    return single(
        rng, split, "read_file",
        ("read_file", "open_file", "cat", "get_file", "load_file", "file_read", "view_file", "fetch_file"),
        ("Read a file", "Returns the content of a file", "Open a text file and return its text",
         "Show a file"),
        ("path", "path", "file", "filename", "file_path", "name"),
        ("The path", "File to read", "Path of the file"),
        lambda r: worlds.path(r, split),
        ("Read {x}", "Read the file {x}", "Open {x}", "Show me {x}", "What is in {x}?",
         "Open the file {x} please",
         "What does {x} say?", "Print the content of {x}", "Show me the content of the file {x}", "Load {x}"),
        ("Read {x}", "Open the files {x}", "Show me {x}", "Read the files {x}", "What is in {x}?"),
        "string", {"encoding": parameter(rng, "string", ("Encoding",)), "limit": parameter(rng, "integer")},
    )  # fmt: skip


def delete_file(rng: random.Random, split: Split) -> OfferedTool:
    """Deleting a file."""
    return single(
        rng, split, "delete_file",
        ("delete_file", "remove_file", "rm", "file_delete", "erase_file", "unlink"),
        ("Delete a file", "Remove a file", "Deletes the file at a path"),
        ("path", "path", "file", "filename", "file_path"), ("The path", "File to delete", "Path of the file"),
        lambda r: worlds.path(r, split),
        ("Delete {x}", "Delete the file {x}", "Remove {x}", "Remove the file {x}", "Erase {x}",
         "Get rid of {x}"),
        ("Delete {x}", "Remove the files {x}", "Delete the files {x}", "Erase {x}"),
        "string", {"force": parameter(rng, "boolean", ("Do not ask",))},
    )  # fmt: skip


def list_folder(rng: random.Random, split: Split) -> OfferedTool:
    """Listing a folder."""
    return single(
        rng, split, "list_files",
        ("list_files", "ls", "list_directory", "list_dir", "dir", "list_folder", "get_files", "show_folder"),
        ("List the files of a folder", "Lists a directory", "Returns the names of the files in a folder"),
        ("path", "folder", "directory", "dir"), ("The folder", "Folder to list", "Path of the directory"),
        lambda r: worlds.folder(r, split),
        ("List the files in {x}", "Which files are in {x}?", "Show the folder {x}",
         "What is in the folder {x}?",
         "List {x}", "List the folder {x}", "Show me the files of {x}"),
        ("List the folders {x}", "Which files are in {x}?", "Show the folders {x}"),
        "string", {"recursive": parameter(rng, "boolean", ("Also list subfolders",))},
    )  # fmt: skip


def stock(rng: random.Random, split: Split) -> OfferedTool:
    """The price of a share."""

    def symbol(r: random.Random) -> str:
        return worlds.coined_word(r, split, 2)[:5].upper()

    return single(
        rng, split, "stock",
        ("get_stock_price", "stock_price", "quote", "get_quote", "share_price", "stock_quote",
         "ticker_price"),
        ("Get the price of a stock", "Stock quote", "Current share price by symbol", "Price of a share"),
        ("symbol", "ticker", "stock", "company"), ("The symbol", "Ticker symbol", "Stock symbol, e.g. ACME"),
        symbol,
        ("What is the price of {x}?", "Stock price of {x}?", "How much is a share of {x}?", "Quote {x}",
         "Get the stock price of {x}.", "How is the stock {x} doing?", "What does {x} trade at?"),
        ("What are the prices of {x}?", "Stock prices of {x}?", "Get the stock price of {x}.", "Quote {x}"),
    )  # fmt: skip


def contact(rng: random.Random, split: Split) -> OfferedTool:
    """Looking up a person."""
    return single(
        rng, split, "contact",
        ("find_contact", "get_contact", "lookup_contact", "search_contacts", "get_user", "find_person",
         "get_phone"),
        ("Find a contact by name", "Look up a person", "Contact details of a person",
         "Search the address book"),
        ("name", "person", "contact_name", "user"), ("The name", "Name of the person", "Who to find"),
        lambda r: worlds.full_name(r, split),
        ("Find the contact {x}", "Look up {x} in the contacts", "What is the phone number of {x}?",
         "What is the mail address of {x}?", "Find {x} in my address book.",
         "Who is {x}? Look in my contacts.",
         "How can I reach {x}?"),
        ("Find the contacts {x}", "Look up {x} in the contacts.", "What are the phone numbers of {x}?"),
    )  # fmt: skip


def timer(rng: random.Random, split: Split) -> OfferedTool:
    """A timer in seconds or minutes."""
    unit = choose(rng, ("minutes", "seconds"))
    return single(
        rng, split, "timer",
        ("set_timer", "start_timer", "timer", "countdown", "new_timer", "create_timer"),
        ("Start a timer", "Set a timer", "Countdown timer", f"Sets a timer in {unit}"),
        (unit,), ("How long", f"Time in {unit}"), lambda r: worlds.between(r, 1, 180),
        (f"Set a timer for {{x}} {unit}.", f"Start a timer of {{x}} {unit}.", f"Timer {{x}} {unit}",
         f"Count down {{x}} {unit}.", f"Remind me in {{x}} {unit} with a timer.",
         f"Start a {{x}} {unit} timer."),
        (f"Set timers for {{x}} {unit}.", f"Start timers of {{x}} {unit}."), "integer",
    )  # fmt: skip


def calculator(rng: random.Random, split: Split) -> OfferedTool:
    """An expression to be computed elsewhere."""

    def expression(r: random.Random) -> str:
        operands = [str(worlds.between(r, 2, 9999)) for _ in range(3 if r.random() < 0.2 else 2)]
        text = operands[0]
        for operand in operands[1:]:
            text += f" {choose(r, '+-*/')} {operand}"
        return text

    return single(
        rng, split, "calculator",
        ("calculator", "calculate", "calc", "evaluate", "compute", "eval_expression", "math", "solve"),
        ("Calculate an expression", "Evaluates a mathematical expression", "A calculator", "Does arithmetic"),
        ("expression", "expression", "expr", "formula", "input"),
        ("The expression", "Expression, e.g. 1 + 2"), expression,
        ("What is {x}?", "Calculate {x}", "Compute {x}", "How much is {x}?", "Work out {x}", "Evaluate {x}",
         "{x} = ?",
         "Use the calculator: {x}"),
        ("Calculate {x}", "Compute {x}", "Work out {x}", "What are {x}?"),
    )  # fmt: skip


def mail(rng: random.Random, split: Split) -> OfferedTool:
    """Sending a mail."""
    to, body = (
        choose(rng, ("to", "to", "recipient", "address")),
        choose(rng, ("body", "body", "text", "message", "content")),
    )
    subject = choose(rng, ("subject", "subject", "title"))
    return composed(
        rng, split, "mail",
        ("send_mail", "send_email", "mail", "email", "compose_mail", "send_message", "mail_send",
         "write_mail"),
        ("Send a mail", "Send an email", "Sends an email to a person", "Mail a message to an address"),
        {to: parameter(rng, "string", ("The recipient", "Mail address")),
         subject: parameter(rng, "string", ("The subject", "Subject line")),
         body: parameter(rng, "string", ("The text", "Body of the mail"))},
        lambda r: {to: worlds.email(r, split), subject: worlds.phrase_of(r, split, 1, 3).capitalize(),
                   body: worlds.phrase_of(r, split, 2, 5).capitalize() + choose(r, (".", "", "!"))},
        [(text.replace("TO", "{" + to + "}").replace("SUBJECT", "{" + subject + "}").replace("BODY",
            "{" + body + "}"),
          to, subject, body) for text in (
            'Send a mail to TO with the subject "SUBJECT" and the text "BODY"',
            'Send an email to TO. Subject: SUBJECT. Text: BODY', 'Mail TO, subject "SUBJECT", saying "BODY"',
            'Write to TO with subject "SUBJECT": "BODY"', 'Email TO: subject "SUBJECT", body "BODY"')],
    )  # fmt: skip


def event(rng: random.Random, split: Split) -> OfferedTool:
    """A calendar entry."""
    title, start = (
        choose(rng, ("title", "title", "name", "summary")),
        choose(rng, ("time", "start", "start_time")),
    )
    people = choose(rng, ("attendees", "participants", "guests", "people"))
    sentences = [
        (f'Create an event "{{{title}}}" on {{date}} at {{{start}}}.', title, "date", start),
        (f'Put "{{{title}}}" in my calendar on {{date}} at {{{start}}}.', title, "date", start),
        (f'Schedule "{{{title}}}" for {{date}}, {{{start}}}.', title, "date", start),
        (
            f'Add a meeting "{{{title}}}" on {{date}} at {{{start}}} with {{{people}}}.',
            title,
            "date",
            start,
            people,
        ),
        (
            f'Plan "{{{title}}}" on {{date}} at {{{start}}}. Invite {{{people}}}.',
            title,
            "date",
            start,
            people,
        ),
        (
            f'Book "{{{title}}}" on {{date}} at {{{start}}} for {{minutes}} minutes.',
            title,
            "date",
            start,
            "minutes",
        ),
    ]
    return composed(
        rng, split, "calendar",
        ("create_event", "add_event", "calendar_add", "schedule_meeting", "new_event", "add_to_calendar",
         "book_event"),
        ("Create a calendar event", "Add an event to the calendar", "Schedule a meeting", "New appointment"),
        {title: parameter(rng, "string", ("The title",)), "date": parameter(rng, "string", ("The date",
            "YYYY-MM-DD")),
         start: parameter(rng, "string", ("Start time", "HH:MM")),
         "minutes": parameter(rng, "integer", ("Duration in minutes",)),
         people: parameter(rng, "array", ("Who takes part",), items={"type": "string"})},
        lambda r: {title: worlds.phrase_of(r, split, 1, 3).capitalize(), "date": worlds.date(r, split),
                   start: worlds.clock(r), "minutes": worlds.between(r, 1, 24) * 5,
                   people: distinct(r, lambda: worlds.person(r, split), worlds.between(r, 1, 3))},
        sentences, [title, "date", start],
    )  # fmt: skip


def exchange(rng: random.Random, split: Split) -> OfferedTool:
    """Converting money."""
    source, target = choose(
        rng, (("from", "to"), ("from_currency", "to_currency"), ("source", "target"), ("base", "quote"))
    )
    forms = ("Convert {amount} A to B.", "How much is {amount} A in B?", "What are {amount} A in B?",
        "Change {amount} A into B.",
             "{amount} A in B?", "Exchange {amount} A to B.")  # fmt: skip

    def draw(r: random.Random) -> Arguments:
        amount: Any = worlds.decimal(r) if r.random() < 0.4 else worlds.whole(r) + 1
        first, second = r.sample(words.CURRENCIES, 2)
        return {"amount": amount, source: first, target: second}

    return composed(
        rng, split, "exchange",
        ("convert_currency", "currency_convert", "exchange", "convert", "fx", "exchange_rate",
         "money_convert"),
        ("Convert an amount of money", "Currency conversion", "Converts between currencies"),
        {"amount": parameter(rng, "number", ("The amount",)),
            source: parameter(rng, "string", ("Currency code",)),
         target: parameter(rng, "string", ("Currency code",))},
        draw,
        [(form.replace("A", "{" + source + "}").replace("B", "{" + target + "}"), "amount", source, target)
         for form in forms],
    )  # fmt: skip


def translate(rng: random.Random, split: Split) -> OfferedTool:
    """Translating a phrase."""
    text, target = (
        choose(rng, ("text", "text", "phrase", "input")),
        choose(rng, ("language", "target", "to", "target_language")),
    )
    return composed(
        rng, split, "translate",
        ("translate", "translate_text", "translation", "translator", "get_translation"),
        ("Translate a text", "Translates text into another language", "Translation service"),
        {text: parameter(rng, "string", ("The text",)), target: parameter(rng, "string", ("Target language",
            ))},
        lambda r: {text: worlds.phrase_of(r, split, 1, 4), target: worlds.LANGUAGES.pick(r, split)},
        [(form.replace("X", "{" + text + "}").replace("L", "{" + target + "}"), text, target) for form in (
            'Translate "X" to L.', 'Translate "X" into L.', 'How do you say "X" in L?', 'What is "X" in L?',
            'Give me the L translation of "X".')],
    )  # fmt: skip


def reminder(rng: random.Random, split: Split) -> OfferedTool:
    """A reminder at a time of day."""
    text, when = choose(rng, ("text", "message", "task", "note")), choose(rng, ("time", "at", "when"))
    return composed(
        rng, split, "reminder",
        ("set_reminder", "create_reminder", "remind_me", "add_reminder", "reminder"),
        ("Set a reminder", "Create a reminder at a time", "Reminds the user of something"),
        {text: parameter(rng, "string", ("What to remember",)),
            when: parameter(rng, "string", ("HH:MM", "The time"))},
        lambda r: {text: worlds.phrase_of(r, split, 1, 3), when: worlds.clock(r)},
        [(form.replace("X", "{" + text + "}").replace("T", "{" + when + "}"), text, when) for form in (
            'Remind me of "X" at T.', 'Remind me at T: X', 'Set a reminder for T with the text "X".',
            'At T remind me of "X".')],
    )  # fmt: skip


def lights(rng: random.Random, split: Split) -> OfferedTool:
    """A lamp on or off, or its brightness."""
    room, on = choose(rng, ("room", "location", "area")), choose(rng, ("on", "state_on", "power", "enabled"))
    rooms = (
        "kitchen",
        "bathroom",
        "bedroom",
        "garage",
        "office",
        "cellar",
        "hall",
        "garden",
        "attic",
        "living room",
    )
    shapes = [("Turn {word} the light in the {room}.",), ("Switch {word} the {room} light.",),
              ("Lights {word} in the {room}.",), ("Turn the {room} light {word}.",)]  # fmt: skip
    definition = define(
        rng, tool_name(rng, split, ("set_light", "switch_light", "light", "control_lights", "lamp",
            "set_lights")),
        ("Switch a light", "Turn the light of a room on or off", "Controls the lights"),
        {room: parameter(rng, "string", ("The room",)), on: parameter(rng, "boolean", ("On or off",
            "True for on"))},
        [room, on],
    )  # fmt: skip

    def ask(rng: random.Random) -> Request:
        where = choose(rng, rooms) if split is Split.TRAIN and rng.random() < 0.7 else worlds.word(rng, split)
        lit = rng.random() < 0.5
        text = fill(rng, choose(rng, shapes), word="on" if lit else "off", room=where)
        return Request(text, {room: where, on: lit})

    return OfferedTool(definition["function"]["name"], "lights", definition, ask)


def order(rng: random.Random, split: Split) -> OfferedTool:
    """Ordering some of an item."""
    item, count = (
        choose(rng, ("item", "product", "article")),
        choose(rng, ("quantity", "count", "amount", "number")),
    )
    return composed(
        rng, split, "order",
        ("order_item", "place_order", "buy", "order", "add_to_cart", "purchase", "shop_order"),
        ("Order an item", "Place an order in the shop", "Buy something", "Adds an item to the cart"),
        {item: parameter(rng, "string", ("The item",)), count: parameter(rng, "integer", ("How many",))},
        lambda r: {item: worlds.word(r, split), count: worlds.between(r, 1, 99)},
        [(form.replace("X", "{" + item + "}").replace("N", "{" + count + "}"), item, count) for form in (
            "Order N x X", "Order N pieces of X", "Buy N X", "Please order N units of X", "I want to buy N X",
            "Put N X in my cart.")],
    )  # fmt: skip


def flight(rng: random.Random, split: Split) -> OfferedTool:
    """A flight between two cities."""
    source, target = choose(
        rng, (("from", "to"), ("origin", "destination"), ("departure", "arrival"), ("start", "end"))
    )
    cabin = ["economy", "business", "first"]
    return composed(
        rng, split, "flight",
        ("book_flight", "find_flight", "search_flights", "flight", "get_flights", "flight_search",
         "reserve_flight"),
        ("Book a flight", "Search flights between two cities", "Find a flight", "Flight booking"),
        {source: parameter(rng, "string", ("City of departure",)),
            target: parameter(rng, "string", ("City of arrival",)),
         "date": parameter(rng, "string", ("The date",)), "cabin": parameter(rng, "string", (), enum=cabin)},
        lambda r: {source: worlds.city(r, split), target: worlds.city(r, split),
            "date": worlds.date(r, split),
                   "cabin": choose(r, cabin)},
        [(form.replace("AA", "{" + source + "}").replace("BB", "{" + target + "}"), source, target, "date",
            *more)
         for form, *more in (
            ("Book a flight from AA to BB on {date}.",), ("Find a flight from AA to BB on {date}.",),
            ("I want to fly from AA to BB on {date}.",), ("Flights from AA to BB, {date}?",),
            ("Book a {cabin} flight from AA to BB on {date}.", "cabin"),
            ("Fly me from AA to BB on {date} in {cabin} class.", "cabin"))],
        [source, target, "date"],
    )  # fmt: skip


def write_file(rng: random.Random, split: Split) -> OfferedTool:
    """Writing a file."""
    path, text = (
        choose(rng, ("path", "file", "filename", "file_path")),
        choose(rng, ("content", "content", "text", "data")),
    )
    return composed(
        rng, split, "write_file",
        ("write_file", "save_file", "create_file", "file_write", "put_file", "store_file"),
        ("Write a file", "Save text to a file", "Creates a file with a content"),
        {path: parameter(rng, "string", ("The path",)), text: parameter(rng, "string", ("The text to write",
            ))},
        lambda r: {path: worlds.path(r, split), text: worlds.phrase_of(r, split, 1, 5)},
        [(form.replace("PATH", "{" + path + "}").replace("TEXT", "{" + text + "}"), path, text) for form in (
            'Write "TEXT" to PATH', 'Save "TEXT" in PATH', 'Create the file PATH with the text "TEXT"',
            'Store "TEXT" in the file PATH', 'Put "TEXT" into PATH')],
    )  # fmt: skip


FAMILIES: tuple[Maker, ...] = (
    weather, local_time, search, read_file, delete_file, list_folder, stock, contact, timer, calculator, mail,
    event,
    exchange, translate, reminder, lights, order, flight, write_file,
)  # fmt: skip
