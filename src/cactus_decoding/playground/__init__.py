"""The playground behind `cactus play`: a local page that shows what a rule does to an answer, token by token.

It is a Starlette application and a plain page, without a build step or an outside asset. Cards on tokens, what-if
sliders and two answers that stream side by side need a document of our own; a toolkit such as Gradio would bring its
own widgets and queue, which stand in the way of all three, and a hundred megabytes.

    form.py           what the page offers: rules and knobs, sampling, limits, examples
    request.py        from the page's JSON to one checked request a rule
    pair_store.py     pairs of models, loaded once
    runs.py           what a visitor asked for: one session for each rule
    session.py        one rule's answer, traced, and what-if questions about its positions
    events.py         a run as a stream of events
    server.py         addresses, and how the server starts
    page/             the page
"""
