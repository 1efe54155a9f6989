"""What runs inside the trainer image: MaxText, recovery, export and evaluation."""
