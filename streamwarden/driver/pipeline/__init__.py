"""The data path, in order: source (arrivals, pace), module, query, batches, sink (outputs, output_table)."""
