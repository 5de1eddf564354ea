__version__: str
torch_version: str
