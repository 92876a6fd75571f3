"""Readers of models of the first years, most of them with learned or ALiBi positions or code of their own."""
