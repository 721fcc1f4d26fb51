"""A web service that predicts while it learns from examples sent over HTTP. See docs/serve.md."""
