"""Who may ask a server, what a request may be, and that none of them imports a module."""

import logging

from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from support.asgi import ask
from support.outside_module import outside_module
from support.tables import all_of

from cactus_decoding import Request, parse_rule
from cactus_decoding.engines.openai.serving import BadRequestError, Guards, KeyGuard, read_body


def application(endpoint):
    def refused(request, error):
        return JSONResponse(str(error), status_code=400)

    return Starlette(
        routes=[Route("/v1/it", endpoint, methods=["POST"])],
        exception_handlers={BadRequestError: refused, ValueError: refused},
    )


async def read(request):
    return JSONResponse(await read_body(request, 1_000))


@all_of("given, status", [
    ("Bearer one", 200), ("Bearer two", 200), ("bearer one", 200), ("BEARER one", 200), ("bEARER   two ", 200),
    ("Bearer One", 401), ("Bearer", 401), ("Bearer ", 401), ("one", 401), ("Basic one", 401), ("Bearerone", 401),
    ("Bearer \xf6ne", 401), ("Bearer one two", 401), ("", 401), (None, 401),
])  # fmt: skip
def test_a_key_is_brought_by_a_scheme_in_any_case(given, status):
    app = KeyGuard(application(read), ["one", "two"], ("/v1/",))
    headers = {} if given is None else {"authorization": given}
    assert ask(app, "POST", "/v1/it", {}, **headers)[0] == status


@all_of("body, said", [
    (b'{"a":' + b"[" * 400 + b"]" * 400 + b"}", "may nest 256 objects and lists"),
    (b'{"a": "\\ud800"}', "half of a surrogate pair"),
    (b'{"\\udc00": 1}', "half of a surrogate pair"),
    (b"{", "must be JSON"),
    (b"[]", "must be a JSON object"),
    (b'{"a": "' + b"a" * 1_000, "may have 1000 bytes"),
])  # fmt: skip
def test_a_body_that_no_honest_client_sends_is_refused(body, said):
    status, answer = ask(Guards(application(read), None), "POST", "/v1/it", body)
    assert (status, said in answer.decode()) == (400, True), answer


def test_a_body_that_breaks_off_is_no_failure_of_the_server(caplog):
    with caplog.at_level(logging.DEBUG):
        assert ask(Guards(application(read), None), "POST", "/v1/it", b'{"a": 1', cut=True)[0] == 400
    assert not [each for each in caplog.records if each.exc_info]


def test_whatever_a_request_spells_no_module_is_imported(tmp_path, monkeypatch):
    module = outside_module(tmp_path, monkeypatch)

    async def here(request):
        return JSONResponse(str(Request.from_dict({"rule": module.spelling}).rule))

    async def in_a_thread(request):
        return JSONResponse(str(await run_sync(parse_rule, module.spelling)))

    for endpoint in (here, in_a_thread):
        status, answer = ask(Guards(application(endpoint), None), "POST", "/v1/it", {})
        assert (status, "must be named where the program is started" in answer.decode()) == (400, True), answer
        assert not module.was_imported
    assert str(parse_rule(module.spelling)) == module.spelling  # by whoever runs the program
    assert module.was_imported
    assert ask(Guards(application(here), None), "POST", "/v1/it", {})[0] == 200  # it is named by now
