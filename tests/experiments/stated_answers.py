r"""Outputs as instruct models write them, made by hand: what a reader takes for the answer.

Nobody asked them for a box. Each has a gold answer, whether it is right as a reader would say (what
no rule can know is told), a word of the rule, and whether the text ended by itself.
"""

from __future__ import annotations

from typing import NamedTuple


class Output(NamedTuple):
    """An output, its gold answer, whether it is right, and a word of the rule that finds it."""

    text: str
    gold: str
    right: bool
    rule: str | None
    ended: bool = True


NATALIA = "In April she sold 48 clips. In May she sold 48/2 = 24 clips."

OUTPUTS = (
    # The answer by a phrase.
    Output("The answer is 72.", "72", True, "answer is"),
    Output(f"{NATALIA} The answer is 72.", "72", True, "answer is"),
    Output(f"{NATALIA}\n\nThe final answer is: 72", "72", True, "answer is"),
    Output(f"{NATALIA}\nThe answer is 24.", "72", False, "answer is"),
    Output("The answer is **72**.", "72", True, "answer is"),
    Output("**Answer:** 72 clips", "72", True, "answer is"),
    Output("**Answer**: 72", "72", True, "answer is"),
    Output("### Final Answer: \\( 72 \\)", "72", True, "answer is"),
    Output("Answer: $72", "72", True, "answer is"),
    Output("The answer is $72$.", "72", True, "answer is"),
    Output(
        "Final Answer: The final answer is $72$. I hope it is correct.", "72", True, "answer is"
    ),
    Output("The correct answer is 72 clips, 24 more than in April.", "72", True, "answer is"),
    Output("The answer is 48 + 24 = 72 clips.", "72", True, "answer is"),
    Output("The answer is that Natalia sold 72 clips.", "72", True, "answer is"),
    Output("The answer to the question is 1,000.", "1000", True, "answer is"),
    Output("The answer is $1,000.00.", "1000", True, "answer is"),
    Output("The answer is 1000.0", "1,000", True, "answer is"),
    Output("So the answer is 5/2.", "2.5", True, "answer is"),
    Output("So the answer is $\\frac{5}{2}$.", "5/2", True, "answer is"),
    Output("The answer is 2 1/2 hours.", "2.5", True, "answer is"),
    Output("The answer is 25%.", "25", True, "answer is"),
    Output("The answer is 25%.", "0.25", True, "answer is"),
    Output("The answer is -5 degrees.", "-5", True, "answer is"),
    Output("The answer is \u22125.", "-5", True, "answer is"),
    Output("The answer is 5.", "-5", False, "answer is"),
    Output("The answer is 72. Let me know if you have 3 more questions!", "72", True, "answer is"),
    Output("The answer is 72. She sold 24 of them in May.", "72", True, "answer is"),
    Output("First I thought the answer is 70. But no, the answer is 72.", "72", True, "answer is"),
    Output("The answer is not 70. The answer is 72.", "72", True, "answer is"),
    Output("The answer is:\n\n72", "72", True, "answer is"),
    Output("The answer is:\n\n\\[ 48 + 24 = 72 \\]", "72", True, "answer is"),
    Output("Answer: Let us see. 48 + 24 = 72 clips.", "72", True, "last number"),
    Output("Answer: In May she sold 24. In all she sold 72.", "72", True, "last number"),
    Output("The answer is 7.", "72", False, "answer is"),
    # Marks.
    Output(f"{NATALIA}\n#### 72", "72", True, "####"),
    Output(f"{NATALIA}\n#### $1,000.", "1000", True, "####"),
    Output("#### Step 1: April\n48\n#### Step 2: May\n48 + 24 = 72", "72", True, "last number"),
    Output("So \\(\\boxed{72}\\).", "72", True, "boxed"),
    Output("\\[ \\boxed{72} \\]", "72", True, "boxed"),
    Output("\\boxed{72\\text{ clips}}", "72", True, "boxed"),
    Output("\\boxed{\\text{72 clips}}", "72", True, "boxed"),
    Output("\\boxed{\\$18.00}", "18", True, "boxed"),
    Output("\\boxed{70} was wrong, so \\boxed{72}", "72", True, "boxed"),
    Output("\\boxed{72} was wrong, so \\boxed{70}", "72", False, "boxed"),
    Output("\\boxed{72}, of which 24 in May.", "72", True, "boxed"),
    Output("\\boxed{x = 72}", "72", True, "boxed"),
    Output("<answer>72</answer>", "72", True, "<answer>"),
    Output("<answer>\\boxed{72}</answer>", "72", True, "<answer>"),
    Output("<answer>70</answer> no: <answer> 72 clips </answer> 3", "72", True, "<answer>"),
    # The last number.
    Output(f"{NATALIA} So, Natalia sold a total of 72 clips.", "72", True, "last number"),
    Output("48 + 24 makes 72 clips altogether", "72", True, "last number"),
    Output("Total clips = 48 + 24 = 72", "72", True, "last number"),
    Output("Altogether, she sold **72** clips: 48 in April and 24 in May.", "72", True, "last"),
    Output("He makes $18.00 every day.", "18", True, "last number"),
    Output("He makes 18 dollars every day.", "18", True, "last number"),
    Output("Therefore it takes\n\n\\( 72 \\)", "72", True, "last number"),
    Output("So it is\n\\[ \\frac{5}{2} \\]", "2.5", True, "last number"),
    Output("It costs $1,234,567 in all.", "1234567", True, "last number"),
    Output("72", "72", True, "last number"),
    Output("72.", "72", True, "last number"),
    Output("1. April: 48\n2. May: 24\n3. Together: 72", "72", True, "last number"),
    Output("It grew by 150%", "150", True, "last number"),
    Output("They sold 5 million tickets.", "5,000,000", True, "last number"),
    Output("She came 2nd with 72 clips.", "72", True, "last number"),
    Output("She sold 72 clips. I hope this helps with your 2 tasks!", "72", True, "last number"),
    Output("So 48 + 24 = 72 clips.\n#### 72\nThe answer is: 72", "72", True, "####"),
    # A rule that reads no meaning is wrong here: behind the answer stands another number.
    Output("So he needs 72 tiles to cover 2/3 of the wall.", "72", False, "last number"),
    Output("She sold 72 clips. That is 24 more than in April.", "72", False, "last number"),
    # No answer.
    Output("", "72", False, None),
    Output("Let me think about the clips.", "72", False, None),
    Output("I'm sorry, but I cannot solve this problem with 72 clips.", "72", False, None),
    Output("There were 72 clips. I do not have enough data to answer.", "72", False, None),
    Output("The total of 72 cannot be determined.", "72", False, None),
    # Thinking.
    Output("<think>48 + 24 = 72, the answer is 70?</think>The answer is 72.", "72", True, "is"),
    Output("<think>So \\boxed{72}.</think>", "72", False, None),
    Output("<think>48 + 24 = 72. The answer is 72.", "72", False, None),
    Output("<think>\\boxed{72} but let me see", "72", False, None, ended=False),
    Output("so 70.</think>\n\nNatalia sold 72 clips.", "72", True, "last number"),
    # Cut off: marks that are complete count, steps on the way do not.
    Output(
        "In April she sold 48 clips and in May half of it, so 72", "72", False, None, ended=False
    ),
    Output("The answer is 72", "72", False, None, ended=False),
    Output("So \\boxed{72} and to check it", "72", True, "boxed", ended=False),
    Output("So \\boxed{72", "72", False, None, ended=False),
    Output("#### 72", "720", False, None, ended=False),
    Output("#### 72\nQuestion: How many", "72", True, "####", ended=False),
    Output("<answer>72</answer> because", "72", True, "<answer>", ended=False),
    Output("<answer>72", "72", False, None, ended=False),
    # Words.
    Output("The answer is Paris.", "Paris", True, "answer is"),
    Output("**Answer: (B)** because it is larger.", "B", True, "answer is"),
    Output("The answer is (B).", "B", True, "answer is"),
    Output("The answer is (A).", "B", False, "answer is"),
    Output("\\boxed{\\text{Evelyn}}", "evelyn", True, "boxed"),
    Output("Evelyn ran faster.", "Evelyn", False, None),
)
