"""Operations on dead letters, handlers, rows and keys, which operators send as messages."""
