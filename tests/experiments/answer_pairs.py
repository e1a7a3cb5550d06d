"""Answers in a box beside gold answers, made by hand: what `math` scoring says of each.

`UNLIKE_ONE_WOULD_LIKE` are pinned as they are, each with what one would like: a newer math-verify
that changes one of them changes results, and a test says so.
"""

from __future__ import annotations

#: Same answer, and taken as such.
EQUAL = (
    # fractions
    (r"\frac{3}{4}", r"\dfrac{3}{4}"),
    (r"\frac34", r"\frac{3}{4}"),
    ("3/4", r"\frac{3}{4}"),
    ("0.75", r"\frac{3}{4}"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    (r"\frac{6}{8}", r"\frac{3}{4}"),
    (r"\tfrac{7}{2}", "3.5"),
    ("2:3", r"\frac{2}{3}"),
    # mixed numbers
    (r"3\frac{1}{2}", r"\frac{7}{2}"),
    (r"1\frac{4}{5}", "1.8"),
    (r"3\frac12", r"3\frac{1}{2}"),
    # surds
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"\sqrt2", r"\sqrt{2}"),
    (r"\sqrt[3]{8}", "2"),
    (r"3 + 2\sqrt{2}", r"2\sqrt{2}+3"),
    # intervals and unions
    ("[-2,7]", "[-2, 7]"),
    ("(-2,7]", r"\left(-2,7\right]"),
    (r"x \in [-2,7]", "[-2,7]"),
    (r"(-\infty, 3)", r"(-\infty,3)"),
    (r"(-\infty,-1)\cup(3,\infty)", r"(-\infty,-1) \cup (3,\infty)"),
    (r"(3,\infty)\cup(-\infty,-1)", r"(-\infty,-1)\cup(3,\infty)"),
    # sets, roots in any order, plus and minus
    (r"\{1,2,3\}", r"\{3,1,2\}"),
    (r"\emptyset", r"\{\}"),
    ("1, 2, 3", "3,1,2"),
    ("x=1, x=-2", "-2,1"),
    (r"1 \text{ or } -2", "-2,1"),
    (r"1 \text{ and } -2", "1,-2"),
    (r"\pm 3", "-3, 3"),
    (r"2 \pm \sqrt{3}", r"2+\sqrt{3}, 2-\sqrt{3}"),
    # units, money, degrees, percent
    (r"18\text{ cm}", "18"),
    (r"18 \text{ dollars}", "18"),
    (r"18\,\mathrm{cm}^2", "18"),
    (r"18\ \text{square units}", "18"),
    ("18 cm", "18"),
    ("18 dollars", "18"),
    ("18.", "18"),
    (r"\$18", "18"),
    (r"\$18.00", "18"),
    ("$18$", "18"),
    (r"45^\circ", "45"),
    (r"45 \text{ degrees}", "45"),
    ("45°", "45"),
    (r"25\%", "25"),
    ("25%", "25"),
    ("0.25", r"25\%"),
    (r"25\%", r"\frac14"),
    # choice letters and words
    (r"\text{B}", "B"),
    ("B", r"\text{(B)}"),
    ("(B)", r"\text{B}"),
    ("b", "B"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"\text{even}", "Even"),
    # thousands, leading zeros
    ("1,234,567", "1234567"),
    ("1{,}234", "1234"),
    (r"1\,234", "1234"),
    ("045", "45"),
    ("45", "045"),
    # complex numbers, matrices, points, bases
    ("3+4i", "4i+3"),
    (r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"),
    ("(3,4)", "(3, 4)"),
    (r"\left(3,\frac{\pi}{2}\right)", r"(3,\frac{\pi}{2})"),
    ("4210_5", "4210_{5}"),
    # expressions and equations
    ("x^2+2x+1", "(x+1)^2"),
    ("x=5", "5"),
    ("y=2x+3", "2x+3"),
    ("2^{10}", "1024"),
    (r"1.8\times 10^1", "18"),
    ("18.0", "18"),
    (r"\log_2 8", "3"),
)

#: Another answer, and taken as such.
DIFFERENT = (
    (r"\frac{3}{4}", r"\frac{4}{3}"),
    ("0.333", r"\frac{1}{3}"),
    (r"5\sqrt{2}", r"2\sqrt{5}"),
    ("(-2,7)", "[-2,7]"),
    (r"(-\infty,-1)\cup[3,\infty)", r"(-\infty,-1)\cup(3,\infty)"),
    (r"\{1,2\}", r"\{1,2,3\}"),
    ("-2, 1", "1"),
    (r"\pm 3", "3"),
    (r"\text{C}", r"\text{B}"),
    ("12,34", "1234"),
    ("450", "45"),
    ("3-4i", "3+4i"),
    (r"\begin{pmatrix}1&2\\4&3\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("(4,3)", "(3,4)"),
    ("4210_6", "4210_5"),
    (r"\pi", "3.14159"),
    (r"\text{even}", r"\text{odd}"),
    ("1.8", "18"),
    ("eighteen", "18"),
    (r"\text{no solution}", "0"),
    (r"-\infty", r"\infty"),
)

#: What we say of the pair is not what one would like.
UNLIKE_ONE_WOULD_LIKE = (
    # An inequality is another kind of thing than an interval; one would like them equal.
    (r"-2 \le x \le 7", r"x \in [-2,7]", False),
    ("x < 3", r"(-\infty,3)", False),
    # A programmer's exponent is e, Euler's number, times 1.8 plus 1.
    ("1.8e1", "18", False),
    # Equal numbers that need a value computed in degrees, or of an exponential.
    (r"\sin 30^\circ", "0.5", False),
    (r"2e^{i\pi}", "-2", False),
    # A list and a point are the same to it, and so is a number without its base.
    ("3,4", "(3,4)", True),
    ("4210", "4210_5", True),
)

#: Whole outputs, for the gold answer 18.
BOXES = (
    (r"so \boxed{18}", True),
    (r"\boxed{ 18 }", True),
    (r"\boxed{17} no, \boxed{18}", True),
    (r"\boxed{x=\boxed{18}}", True),
    (r"\boxed{18} no, \boxed{17}", False),
    (r"\boxed{}", False),
    # TeX takes the next token as the box; a model writes braces, and only those are read.
    (r"\boxed 18", False),
    # Another box; AIME's prompts ask for \boxed alone.
    (r"\fbox{18}", False),
    # Words inside the box; one would like the number.
    (r"\boxed{\text{the answer is }18}", False),
)
