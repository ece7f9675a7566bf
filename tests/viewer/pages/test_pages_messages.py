from kinetoscope.viewer.pages.export import export
from kinetoscope.viewer.server.routes import answer
from tests.support.messages import check_messages
from tests.viewer.pages.test_memory import training


def test_what_is_refused_or_warned_of_is_said_in_the_stored_words():
    check_messages(__file__, answer=answer, export=export, trace=training())
