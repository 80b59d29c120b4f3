"""The playground behind `cactus play`: a local page that shows what a rule does to an answer, token by token.

It is a Starlette application and a plain page, without a build step or an outside asset. Cards on tokens, what-if
sliders and two answers that stream side by side need a document of our own; a toolkit such as Gradio would bring its
own widgets and queue, which stand in the way of all three, and a hundred megabytes.
"""
