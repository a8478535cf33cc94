"""What one can ask a running application, and tell it to do: typed questions, their answers, and operations.

Nothing here knows Faust, Kafka's client or a page: `streams.console` shows the answers.
"""
