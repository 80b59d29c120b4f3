"""Grade-school word problems of this project: training data, and a held-out task without downloads."""

from cactus_decoding.zoo.word_problems.generator import EXAMPLES as EXAMPLES
from cactus_decoding.zoo.word_problems.generator import Example as Example
from cactus_decoding.zoo.word_problems.generator import WordProblem as WordProblem
from cactus_decoding.zoo.word_problems.generator import as_prompt as as_prompt
from cactus_decoding.zoo.word_problems.generator import extract_answer as extract_answer
from cactus_decoding.zoo.word_problems.generator import format_prompt as format_prompt
from cactus_decoding.zoo.word_problems.generator import is_prompt as is_prompt
from cactus_decoding.zoo.word_problems.generator import split_of as split_of
from cactus_decoding.zoo.word_problems.generator import word_problems as word_problems
