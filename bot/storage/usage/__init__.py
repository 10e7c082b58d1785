"""What answers cost, in SQL: budgets, and totals of the usage that is kept with receipts."""
