"""Whole models: do they train alike with the kernels put in, and how much faster?

``decoder``       a transformer written twice, in torch's parts and in those of ``kernels.nn``
``hugging_face``  a Llama and a BERT of the package transformers, with ``kernels.nn.replace``
``proof``         both, against torch eager and torch.compile
``step``          a user's program: one of these models, trained
``way_in``        a user's commands: watch it, tune and export its problems, run it again
``workload``      what these come to: the program's step before and after
"""
