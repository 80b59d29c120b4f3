"""What engines share that sample by themselves: rules as logits, costs, meters and counters."""
