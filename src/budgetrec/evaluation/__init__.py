"""How good a model is: ranks and losses user by user first, averages, intervals and curves from them."""
