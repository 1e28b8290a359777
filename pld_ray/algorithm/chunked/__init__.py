"""Q-chunking (ACRLPD): a flow policy over action chunks and critics of whole chunks."""
