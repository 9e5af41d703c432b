"""stats.py -- means, standard errors and paired tests; standard library only.

A difference is tested by Student's t on paired differences: over documents or samples that two models were both given,
each difference first averaged over the seeds, or over seeds, each seed giving one pair."""
import math


def mean(x):
    return sum(x) / len(x)


def error(x):
    """Standard error of the mean; None for one value."""
    if len(x) < 2:
        return None
    m = mean(x)
    return math.sqrt(sum((v - m) ** 2 for v in x) / (len(x) - 1) / len(x))


def beta_fraction(a, b, x):
    """The continued fraction of the incomplete beta function (Lentz's method)."""
    tiny, c = 1e-300, 1.0
    d = 1 / (1 - (a + b) * x / (a + 1) or tiny)
    out = d
    for m in range(1, 400):
        for top in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                    -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 / (1 + top * d or tiny)
            c = 1 + top / c or tiny
            out *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return out


def incomplete_beta(a, b, x):
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(1 - x))
    if x < (a + 1) / (a + b + 2):
        return front * beta_fraction(a, b, x) / a
    return 1 - front * beta_fraction(b, a, 1 - x) / b


def p_of_t(t, freedom):
    """Two-sided."""
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


class Paired:
    """The mean of paired differences with its standard error and p. weights: that of a ratio of sums, as in a
    perplexity, where sum(d) / sum(weight) is the quantity."""

    def __init__(self, differences, weights=None):
        d, n = differences, len(differences)
        w = weights or [1] * n
        self.n = n
        self.mean = sum(d) / sum(w)
        if n > 1:
            square = sum((x - self.mean * y) ** 2 for x, y in zip(d, w))
            self.error = math.sqrt(square * n / (n - 1)) / sum(w)
        else:
            self.error = None
        if not self.error:  # one pair; or all differences the same
            self.p = 1.0 if self.error is None or self.mean == 0 else 0.0
        else:
            self.p = p_of_t(self.mean / self.error, n - 1)

    def half_width(self):
        """Of the 95 % interval, by the normal distribution."""
        return 1.96 * self.error if self.error is not None else math.inf
