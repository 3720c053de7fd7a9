"""The study that the rule comes from: each module gives frames and draws its figures."""
