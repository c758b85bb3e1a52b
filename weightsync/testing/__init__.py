"""What a plug-in author runs against an implementation, and the fakes that are real implementations."""
