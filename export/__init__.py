"""Turn a Hugging Face model into an artifact: graph, weights, manifest, tokenizer."""
