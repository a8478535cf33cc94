"""Operations on dead letters, handlers and rows, which come as messages."""
