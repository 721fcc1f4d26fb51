"""The live learner: a service that is taught over HTTP and keeps learning in its own process. See docs/serve.md."""
