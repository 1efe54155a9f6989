"""KFP pipelines composed of the components, how they are compiled, and a pipeline on this machine."""
