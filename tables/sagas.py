"""`order-sagas`, by order id: the state of each orchestrated order. `<service>-steps`, by order id and step:
the service's part in it.
"""

from __future__ import annotations

from streams import Table
from streams.saga import Participation, SagaRow

ORDER_SAGAS = Table("order-sagas", SagaRow)
INVENTORY_STEPS = Table("inventory-steps", Participation)
PAYMENT_STEPS = Table("payment-steps", Participation)
SHIPPING_STEPS = Table("shipping-steps", Participation)
