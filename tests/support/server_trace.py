"""Traces of servers, with requests that are in progress at once."""

from tests.support.trace_builder import USER, TraceBuilder


class Server:
    """Builds a trace of a server with two threads: the event loop's, and one of a pool."""

    def __init__(self):
        self.builder = TraceBuilder()
        self.threads = [self.builder.thread("loop"), self.builder.thread("pool")]

    def mark(self, name, start, duration=0, thread=0):
        self.builder.span(name, start, duration, thread=self.threads[thread], scope=USER)
        return self

    def operator(self, start, duration, thread=0, **options):
        self.builder.span("aten::mm", start, duration, thread=self.threads[thread], **options)
        return self

    def rows(self):
        return self.builder.build().table("requests").to_pylist()
