"""Tools as programs have them and the questions people ask them: the weather, mail, a timer, a
flight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from examples.demo_model.items import Draw
from examples.demo_model.slots import SLOTS
from examples.demo_model.tool_schemas import again, new_tool, request, schema
from examples.demo_model.words import new_word

BOTH: Final = ("{a} and {b}", "{a} and {b}", "{a}, and {b}", "{a}, then {b}", "{a} and also {b}")
"""Patterns of two joined requests."""
Request = tuple[str, list[dict[str, Any]]]
"""A request, without first capital and end, and the arguments of each call it needs."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool and its requests."""

    name: str
    schema: dict[str, Any]
    topics: tuple[str, ...]
    """What it is about; two tools with a topic in common may both fit a request."""
    fields: tuple[str, ...]
    """Fields of its results."""
    make_request: Callable[[Draw], Request]
    make_double_request: Callable[[Draw], Request]


@dataclass(frozen=True, slots=True)
class Everyday:
    """A kind of tool, which has many names."""

    topics: str
    """Topic words; tools of one conversation have none in common."""
    verbs: str
    nouns: str
    descriptions: str
    """Separated by bars."""
    requests: tuple[str, ...]
    """Requests with slots; the part after a bar may be repeated: `in Paris and in Rome`."""
    fields: str
    """Fields of its results."""


EVERYDAY: Final = (
    Everyday("weather forecast temperature humidity wind", "get check show fetch", "weather current_weather weather_report forecast",
        "Get the weather of a city.|Get the current weather in a city|Returns the weather for a "
        "place.|Current temperature and conditions of a city",
        ("what is the weather|in {city}?", "what is the weather like|in {city}?", "how is the weather|in {city}?", "how warm is it|in {city}?",
         "how cold is it|in {city}?", "is it raining|in {city}?", "get the weather|in {city}", "tell me the weather|in {city}",
         "what is the temperature|in {city}?", "will it rain|in {city}?", "what is the weather|in {city} on {day}?", "will it rain|in {city} on {day}?",
         "what is the weather|in {city} in {unit}?", "show me the weather|for {city}", "what's the weather|in {city}?"),
        "weather temperature condition wind humidity city"),
    Everyday("time timer alarm clock", "get show tell", "time local_time current_time clock",
        "Get the time in a city.|Returns the local time of a place|What time it is in a city.",
        ("what time is it|in {city}?", "what is the time|in {city}?", "tell me the time|in {city}", "how late is it|in {city}?", "get the time|in {city}"),
        "time date city timezone"),
    Everyday("mail email message address", "read check list search", "mail emails inbox messages",
        "Read the mail a user has got.|Look for mails from a sender.|List the emails of someone",
        ("do I have mail|from {person}?", "is there any mail|from {person}?", "did {person} write to me?", "check my mail|from {person}",
         "show me the emails|from {person}", "what did {person} write to me?", "read the mail|from {person}"),
        "sender subject unread count"),
    Everyday("mail email message address", "send write compose", "email mail message",
        "Send an email.|Write a mail to somebody|Sends a message to a person.",
        ("send {person} an email about {subject}", "send an email to {person} with the subject "
                                                   "{subject}", "write to {person} about {subject}",
         "email {person} about {subject}", "write an email to {person} with subject {subject}", "tell {person} by mail about {subject}"),
        "status id sent"),
    Everyday("web search query internet", "search query find", "web internet google results",
        "Search the web.|Look something up on the internet|Returns web pages for a query.",
        ("search the web|for {query}", "look up {query} on the web", "search|for {query}", "find {query} on the internet", "search the internet|for {query}",
         "google {query}", "what does the web say|about {query}?"),
        "title results page url"),
    Everyday("currency money amount rate exchange", "convert exchange change", "currency money amount",
        "Convert money into another currency.|Converts an amount between currencies|Exchange an "
        "amount.",
        ("convert {amount} {from_code} to {to_code}", "how much is {amount} {from_code} in "
                                                      "{to_code}?", "change {amount} {from_code} "
                                                                    "into {to_code}",
         "what is {amount} {from_code} in {to_code}?", "how many {to_code} are {amount} "
                                                       "{from_code}?"),
        "amount currency rate"),
    Everyday("stock share price market", "get check fetch", "stock_price share_price quote stock",
        "Get the price of a stock.|Current price of a share|Returns the quote for a symbol.",
        ("what is the stock price|of {symbol}?", "how is {symbol} doing?", "get the stock price|of {symbol}", "what does a share|of {symbol} cost?",
         "how much is one share|of {symbol}?", "check the price|of {symbol}"),
        "price change currency symbol"),
    Everyday("flight flights plane airport trip", "find search book get", "flights flight plane",
        "Find flights between two cities.|Search for a flight|Flights from one city to another.",
        ("find a flight|from {origin} to {destination}", "when is the next flight|from {origin} to "
                                                         "{destination}?", "find a flight|from {origin} to {destination} on {day}",
         "is there a flight|from {origin} to {destination}?", "how do I fly|from {origin} to "
                                                              "{destination} on {day}?", "I want to fly|from {origin} to {destination}"),
        "flight price gate departure"),
    Everyday("train trains station connection trip", "find get search", "trains connection train_times",
        "Find trains between two cities.|Train connections from one city to another",
        ("when does the next train|from {origin} to {destination} leave?", "find a train|from {origin} to {destination}", "which train goes|from {origin} to {destination} on {day}?",
         "is there a train|from {origin} to {destination}?", "find a train|from {origin} to "
                                                             "{destination} on {day}"),
        "train track departure delay"),
    Everyday("hotel room reservation", "book reserve find", "hotel hotel_room accommodation",
        "Book a hotel.|Reserve a room in a hotel|Finds a hotel in a city.",
        ("book a hotel|in {city} for {nights} nights", "I need a hotel|in {city} for {nights} "
                                                       "nights", "reserve a room|in {city} for "
                                                                 "{nights} nights",
         "find a hotel|in {city} for {nights} nights and {guests} guests", "book a room|in {city} for {nights} nights and {guests} people"),
        "hotel price nights rating"),
    Everyday("restaurant restaurants food table dinner", "find search recommend", "restaurants restaurant place_to_eat",
        "Find restaurants in a city.|Search for a place to eat|Recommends restaurants.",
        ("where can I eat|in {city}?", "find a restaurant|in {city}", "is there a good restaurant|in {city}?", "find a {cuisine} restaurant|in {city}",
         "where can I eat {cuisine} food|in {city}?"),
        "restaurant rating street price"),
    Everyday("reminder task calendar note todo", "create set add", "reminder task todo",
        "Create a reminder.|Remind the user of something|Adds a task with a time.",
        ("remind me to {task}", "remind me to {task} at {time}", "set a reminder to {task} at "
                                                                 "{time}", "please do not let me forget to {task}",
         "add a reminder to {task}"),
        "status id time"),
    Everyday("time timer alarm clock", "set create start", "alarm alarm_clock wake_up",
        "Set an alarm.|Wake the user at a time|Sets the alarm clock.",
        ("wake me|at {time}", "set an alarm|for {time}", "wake me up|at {time} on {day}", "set the alarm|to {time}"),
        "status time id"),
    Everyday("time timer alarm clock minutes", "start set create", "timer countdown kitchen_timer",
        "Start a timer.|Sets a timer of some minutes|Count down minutes.",
        ("set a timer|for {minutes} minutes", "start a timer|of {minutes} minutes", "tell me when {minutes} minutes are over",
         "start a countdown|of {minutes} minutes"),
        "status minutes id"),
    Everyday("music song playlist player sound", "play start queue", "music song track",
        "Play music.|Play songs of an artist|Starts a song.",
        ("play something by {person}", "play music|by {person}", "play {title} by {person}", "I want to hear {person}", "put on some music|by {person}"),
        "song artist status"),
    Everyday("light lights lamp", "switch set turn", "light lights lamp",
        "Turn the light of a room on or off.|Switch a lamp|Controls the lights.",
        ("turn {on} the light|in the {room}", "switch {on} the light|in the {room}", "turn the light {on}|in the {room}", "turn {on} the lights|in the {room}",
         "switch the lamp {on}|in the {room}"),
        "status room brightness"),
    Everyday("heating thermostat temperature heat", "set change adjust", "heating thermostat room_temperature",
        "Set the temperature of a room.|Changes the thermostat|Heat a room to a temperature.",
        ("set the heating|in the {room} to {degrees}", "heat the {room} to {degrees} degrees", "set the temperature|in the {room} to {degrees} degrees",
         "make it {degrees} degrees|in the {room}"),
        "temperature room status"),
    Everyday("calendar appointment meeting event schedule", "get read list", "calendar events appointments schedule",
        "Read the user's calendar.|Lists the events of a day|Get the appointments of a day.",
        ("what do I have to do|on {day}?", "am I free|on {day}?", "what is on my calendar|on "
                                                                  "{day}?", "do I have an appointment|on {day}?",
         "show me my calendar|for {day}", "what are my plans|for {day}?"),
        "event time place count"),
    Everyday("calendar appointment meeting event schedule", "schedule create plan", "meeting appointment event",
        "Schedule a meeting.|Create an appointment with somebody|Plans a meeting.",
        ("schedule a meeting|with {person} on {day} at {time}", "I want to meet {person} on {day} "
                                                                "at {time}", "plan a meeting|with {person} on {day}",
         "set up a meeting|with {person} on {day}", "arrange a call|with {person} on {day} at "
                                                    "{time}"),
        "status meeting id"),
    Everyday("translation translate language word", "translate", "text words sentence phrase",
        "Translate a text.|Translates words into a language|Say something in another language.",
        ("translate {words} to {language}", "how do you say {words} in {language}?", "what is {words} in {language}?", "translate {words} into {language}",
         "say {words} in {language}"),
        "translation language text"),
    Everyday("distance route way map", "get compute calculate", "distance route directions",
        "Get the distance between two cities.|Calculates how far it is from one place to "
        "another|The way between cities.",
        ("how far is it|from {origin} to {destination}?", "what is the distance|from {origin} to "
                                                          "{destination}?", "how do I get|from {origin} to {destination}?",
         "how long is the way|from {origin} to {destination}?", "how far is it|from {origin} to "
                                                                "{destination} by {vehicle}?"),
        "distance duration route"),
    Everyday("news headlines article", "get fetch read", "news headlines latest_news",
        "Get the news about a topic.|Latest headlines|Returns news articles.",
        ("what is the news|about {query}?", "what is new|about {query}?", "show me the headlines|about {query}", "get the latest news|about {query}"),
        "title source date"),
    Everyday("population people inhabitants country", "get lookup find", "population inhabitants country_info",
        "Get the population of a country or city.|How many people live somewhere|Number of "
        "inhabitants.",
        ("how many people live|in {city}?", "what is the population|of {city}?", "how large is the population|of {city}?", "get the population|of {city}"),
        "population area year"),
    Everyday("package parcel delivery", "track find locate", "package parcel delivery shipment",
        "Track a package.|Says where a parcel is|Find a delivery by its number.",
        ("where is my package {number}?", "where is parcel {number}?", "track the package|with number {number}", "when does package {number} come?",
         "track parcel {number}"),
        "status place day"),
    Everyday("order shop buy", "order buy purchase", "item product article",
        "Order something in the shop.|Buys a product|Place an order.",
        ("order {quantity} {item}", "buy {quantity} {item}", "I would like {quantity} {item}", "I want to buy {quantity} {item}", "get me {quantity} {item}"),
        "price status order"),
    Everyday("door lock key", "check get is", "door_locked lock_state door",
        "Check whether a door is locked.|Says if the door of a room is open|State of a lock.",
        ("is the door|of the {room} locked?", "is the door|of the {room} open?", "check the door|of the {room}", "did I lock the door|of the {room}?"),
        "state door room"),
    Everyday("phone call number contact", "call phone dial", "person contact someone",
        "Call somebody.|Make a phone call|Dials a contact.",
        ("call {person}", "phone {person}", "make a phone call to {person}", "I want to talk to {person} on the phone", "ring {person}"),
        "status duration"),
    Everyday("phone call number contact", "get find lookup", "phone_number contact number",
        "Get somebody's phone number.|Look up a contact|Find the number of a person.",
        ("what is the phone number|of {person}?", "what is {person}'s number?", "find the phone number|of {person}", "look up the number|of {person}"),
        "number name email"),
    Everyday("shopping list groceries", "add put append", "shopping_list groceries list",
        "Add things to the shopping list.|Puts items on the list|Extends the shopping list.",
        ("add {items} to the shopping list", "put {items} on my list", "put {items} on the shopping list", "we need {items}"),
        "status count items"),
    Everyday("user account profile customer", "get find fetch", "user account profile customer",
        "Get a user by id.|Returns the account with a number|Look up a customer.",
        ("who is user {number}?", "get the user|with id {number}", "show me account {number}", "what is the name|of customer {number}?", "find user {number}"),
        "name age email city"),
    Everyday("ticket issue bug task", "create open file", "ticket issue bug_report",
        "Create a ticket.|Opens an issue with a priority|File a bug.",
        ("open a ticket called {title} with {priority} priority", "create a ticket|with title "
                                                                  "{title} and priority {priority}",
         "file an issue called {title}", "open a {priority} priority ticket called {title}"),
        "id status priority"),
    Everyday("recipe cook dish kitchen", "find search get", "recipe recipes dish",
        "Find a recipe.|What to cook with an ingredient|Search recipes.",
        ("what can I cook|with {food}?", "find a recipe|with {food}", "how do I cook {food}?", "give me a recipe|for {food}"),
        "recipe minutes title"),
    Everyday("file files document folder", "open read load", "file document text_file",
        "Read a file.|Returns the content of a file|Opens a document.",
        ("read the file {path}", "open {path}", "what is in {path}?", "show me the file {path}"),
        "size lines content"),
    Everyday("volume sound loud speaker", "set change adjust", "volume speaker_volume sound",
        "Set the volume.|Changes how loud it is|Adjust the speaker.",
        ("set the volume to {level}", "make the volume {level}", "change the volume to {level}"),
        "volume status"),
    Everyday("dictionary meaning definition word", "define get lookup", "word definition meaning",
        "Get the meaning of a word.|Look a word up in the dictionary|Explains what a word means.",
        ("what does {thing} mean?", "define|the word {thing}", "what is the meaning|of {thing}?", "look up {thing} in the dictionary", "explain|the word {thing}"),
        "meaning word kind"),
    Everyday("movie movies cinema film", "find get list", "movies films showtimes",
        "Find movies in a city.|Lists what the cinemas show|Showtimes of films in a place.",
        ("which movies are on|in {city}?", "what is on at the cinema|in {city} on {day}?", "find a movie|in {city}", "which films can I see|in {city} on {day}?"),
        "title time cinema price"),
    Everyday("sun sunrise sunset", "get compute find", "sunrise sunset sun_times",
        "Get the time of sunrise and sunset.|When the sun rises in a city|Sunrise and sunset of a "
        "place.",
        ("when does the sun rise|in {city}?", "when is sunset|in {city}?", "when does the sun set|in {city} on {day}?", "tell me the sunrise|in {city}"),
        "sunrise sunset day"),
    Everyday("taxi cab car ride", "call book order", "taxi cab ride",
        "Call a taxi.|Books a ride in the city|Order a cab to a place.",
        ("call a taxi to {destination}", "I need a taxi to {destination}", "order a taxi to {destination} at {time}", "book a ride to {destination} at {time}"),
        "status driver minutes price"),
    Everyday("camera picture photo", "take make shoot", "picture photo snapshot",
        "Take a picture of a room.|Makes a photo with the camera|Shoots a photo.",
        ("take a picture|of the {room}", "make a photo|of the {room}", "show me a picture|of the {room}", "what does the camera|of the {room} see?"),
        "status file size"),
    Everyday("joke fun story", "tell get make", "joke funny_story",
        "Tell a joke.|A funny story about something|Returns a joke about a topic.",
        ("tell me a joke|about {thing}", "do you know a joke|about {thing}?", "make me laugh with {thing}", "I want to hear a joke|about {thing}"),
        "joke topic rating"),
)  # fmt: skip
_ANY_VERB: Final = (
    "get",
    "fetch",
    "query",
    "request",
    "run",
    "do",
    "use",
    "handle",
    "lookup",
    "ask",
)
_BETWEEN: Final = ("my", "the", "user", "new", "quick", "simple", "local", "smart")
_ENDINGS: Final = ("api", "tool", "service", "helper", "client", "info", "function", "v2")
"""What names may have that says little of the tool, so that it is known by the rest."""
_SLOT: Final = re.compile(r"{(\w+)}")


def everyday_tool(draw: Draw) -> Tool:
    """Return a tool with a name of this side of the split."""
    odd = draw.chance(0.1)  # before the split, so that both sides have as many
    what, name = draw.own(lambda: _named(draw, odd), lambda named: named[1])
    offered = [
        pattern for pattern in what.requests if pattern is what.requests[0] or draw.chance(0.8)
    ]
    slots = list(
        dict.fromkeys(slot for make_request in offered for slot in _SLOT.findall(make_request))
    )
    called = {slot: draw.one(SLOTS[slot].names) for slot in slots}
    properties = {called[slot]: SLOTS[slot].schema(draw, called[slot]) for slot in slots}
    required = [
        called[slot]
        for slot in slots
        if all(f"{{{slot}}}" in make_request for make_request in offered)
    ]
    return Tool(
        name,
        schema(draw, name, draw.one(what.descriptions.split("|")), properties, required),
        tuple(what.topics.split()),
        tuple(what.fields.split()),
        partial(_make_request, requests=offered, called=called, properties=properties),
        partial(_make_double_request, requests=offered, called=called, properties=properties),
    )


def tool_of_words(draw: Draw) -> Tool:
    """Return an invented tool, requested by commands."""
    tool = new_tool(draw)

    def make_request(draw: Draw) -> Request:
        wording, arguments = request(draw, tool, again(draw, tool))
        return wording, [arguments]

    def make_double_request(draw: Draw) -> Request:
        first, one = make_request(draw)
        second, other = make_request(draw)
        return draw.one(BOTH).format(a=first, b=second), one + other

    return Tool(
        tool.name,
        tool.schema,
        (tool.noun,),
        (tool.noun.split()[-1],),
        make_request,
        make_double_request,
    )


def _named(draw: Draw, odd: bool) -> tuple[Everyday, str]:
    """Return the kind and the name of a tool."""
    what = draw.one(EVERYDAY)
    noun = draw.one(what.nouns.split())
    if odd:
        return what, f"{new_word(draw, 1, 1)}_{noun}"
    verb = draw.one(_ANY_VERB if draw.chance(0.25) else what.verbs.split())
    style = draw.number(0, 9)
    if style == 0:
        return what, f"{noun}_{draw.one(_ENDINGS)}"
    if style == 1:
        return what, f"{noun}_{verb}"
    words = [verb, *([draw.one(_BETWEEN)] if draw.chance(0.2) else ()), *noun.split("_")]
    if style <= 6:
        return what, "_".join(words)
    if style == 7:
        return what, "-".join(words)
    capitals = [word.capitalize() for word in words]
    if style != 8:
        capitals[0] = verb
    return what, "".join(capitals)


def _make_request(
    draw: Draw, requests: list[str], called: Mapping[str, str], properties: Mapping[str, Any]
) -> Request:
    wording, arguments = _filled(draw, draw.one(requests).replace("|", " "), called, properties)
    return wording, [arguments]


def _make_double_request(
    draw: Draw, requests: list[str], called: Mapping[str, str], properties: Mapping[str, Any]
) -> Request:
    """Return one request for two calls: with its end repeated, or all of it."""
    stem, bar, tail = draw.one(requests).partition("|")
    if not bar or draw.chance(0.25):
        whole = stem + (f" {tail}" if bar else "")
        first, one = _filled(draw, whole.rstrip("?"), called, properties)
        second, other = _filled(
            draw, draw.one((whole, draw.one(requests).replace("|", " "))), called, properties
        )
        return draw.one(BOTH).format(a=first, b=second), [one, other]
    begin, same = _filled(draw, stem, called, properties)
    first, one = _filled(draw, tail.rstrip("?"), called, properties)
    second, other = _filled(draw, tail, called, properties)
    if draw.chance(0.3) and second.split()[0] == first.split()[0]:
        second = second.split(maxsplit=1)[1]  # "in Paris and Rome"
    return f"{begin} {first}{draw.one((' and ', ' and ', ' and also '))}{second}", [
        same | one,
        same | other,
    ]


def _filled(
    draw: Draw, make_request: str, called: Mapping[str, str], properties: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    values = {
        slot: SLOTS[slot].value(draw, properties[called[slot]])
        for slot in _SLOT.findall(make_request)
    }
    return make_request.format(**{slot: words for slot, (_, words) in values.items()}), {
        called[slot]: value for slot, (value, _) in values.items()
    }
