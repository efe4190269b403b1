"""From what the stages of a model take to a cost table, whatever model it is."""
