//! Ratios with their confidence intervals. Pure: its only input are numbers.
//!
//! A ratio is computed over all intervals, and without each of them in turn (the jackknife). How
//! much the results differ says how certain the ratio is. The number of intervals determines it,
//! not that of requests: the requests of an interval use the same few regions, at the same time of
//! the day. Intervals that resemble their neighbours count for less: their correlation reduces
//! their number. Nothing is drawn at random.
//!
//! All computation is with logarithms: twice as fast is as far from equal as half as fast.

/// The least standard error of the logarithm of a ratio. Even without any variation between
/// intervals, a comparison has errors of this size, for example by when a response time begins to
/// be counted, and by what the comparison itself costs.
const ERROR_MIN: f64 = 0.01;
/// The largest correlation of neighbouring intervals that is computed with. With more, they say
/// nothing about their mean.
const CORRELATION_MAX: f64 = 0.95;
/// The least number of independent intervals that is computed with. With fewer, an interval would
/// be too wide to say anything.
const INDEPENDENT_MIN: f64 = 4.0;

/// A ratio with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Estimate {
    /// The estimate of a ratio, and of its interval.
    pub(crate) fn of(log: LogRatio) -> Self {
        let LogRatio { value, error, independent } = log;
        let reach = student_t((independent - 1.0).max(1.0)) * error.hypot(ERROR_MIN);
        Self { value: value.exp(), low: (value - reach).exp(), high: (value + reach).exp() }
    }

    /// Two estimates of the same ratio as one, whose interval covers both of theirs: one of them is
    /// right. Its value is their mean, in which the more certain one weighs more, unless
    /// they disagree (the random-effects model).
    pub(crate) fn covering(self, other: Self) -> Self {
        let both = [self, other];
        let variances = both.map(|one| ((one.high / one.low).ln() / (2.0 * Z_95)).powi(2));
        let apart = (self.value / other.value).ln().powi(2);
        let between = ((apart - variances[0] - variances[1]) / 2.0).max(0.0);
        let weights = variances.map(|variance| 1.0 / (variance + between).max(f64::MIN_POSITIVE));
        let log = weights[0] * self.value.ln() + weights[1] * other.value.ln();
        Self {
            value: (log / (weights[0] + weights[1])).exp(),
            low: self.low.min(other.low),
            high: self.high.max(other.high),
        }
    }

    /// The same, with an interval that reaches lower and higher by these parts.
    pub(crate) fn widened(self, lower: f64, higher: f64) -> Self {
        let (low, high) = (self.low / (1.0 + lower.max(0.0)), self.high * (1.0 + higher.max(0.0)));
        Self { low, high, ..self }
    }

    /// The same, if `outside` may be added to both times: the served one is 1, and the other one is
    /// the ratio. The interval covers the ratio with and without it.
    pub(crate) fn with_outside(self, outside: f64) -> Self {
        let [low, high] = [self.low, self.high].map(|ratio| (ratio + outside) / (1.0 + outside));
        Self { low: self.low.min(low), high: self.high.max(high), ..self }
    }

    /// The ratio of several kinds of requests together, each weighted with the time that its served
    /// requests take, in seconds. The errors of all kinds are taken to go in the same direction,
    /// which makes the interval rather too wide. `None` without any time.
    pub(crate) fn together(kinds: &[(f64, Self)]) -> Option<Self> {
        let whole: f64 = kinds.iter().map(|(seconds, _)| seconds).sum();
        let mut together = Self { value: 0.0, low: 0.0, high: 0.0 };
        for (seconds, one) in kinds {
            together.value += seconds / whole * one.value;
            together.low += seconds / whole * one.low;
            together.high += seconds / whole * one.high;
        }
        (whole > 0.0).then_some(together)
    }
}

/// The logarithm of a ratio, with what is known of its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LogRatio {
    pub(crate) value: f64,
    /// Its standard error.
    pub(crate) error: f64,
    /// The number of independent intervals that it comes from.
    pub(crate) independent: f64,
}

impl LogRatio {
    /// The jackknife: a value over all intervals, and the values without each of them in turn, in
    /// the order of time. `None` with fewer than two.
    pub(crate) fn jackknife(value: f64, without: &[f64]) -> Option<Self> {
        let count = without.len() as f64;
        let mean = without.iter().sum::<f64>() / count;
        let deviations: Vec<f64> = without.iter().map(|one| one - mean).collect();
        let squares: f64 = deviations.iter().map(|one| one * one).sum();
        let independent = count * independent_part(&deviations);
        let error = ((count - 1.0) / independent * squares).sqrt();
        (without.len() > 1).then_some(Self { value, error, independent })
    }

    /// The logarithm of the ratio of two independent values.
    pub(crate) fn over(self, other: Self) -> Self {
        Self {
            value: self.value - other.value,
            error: self.error.hypot(other.error),
            independent: self.independent.min(other.independent),
        }
    }
}

/// The part of a series of intervals that counts as independent, by the correlation of neighbours.
/// The estimate of a correlation is too low on average, and this one is raised by that (Kendall's
/// correction) and by half of its standard error, because too low a correlation does more harm than
/// too high a one.
fn independent_part(deviations: &[f64]) -> f64 {
    let count = deviations.len() as f64;
    let squares: f64 = deviations.iter().map(|one| one * one).sum();
    if squares <= 0.0 {
        return 1.0;
    }
    let found = deviations.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>() / squares;
    let corrected = found + (1.0 + 4.0 * found) / count + 0.5 / count.sqrt();
    let correlation = corrected.clamp(0.0, CORRELATION_MAX);
    ((1.0 - correlation) / (1.0 + correlation)).max((INDEPENDENT_MIN / count).min(1.0))
}

/// The quantile 0.975 of the normal distribution.
const Z_95: f64 = 1.959_964;

/// The quantile 0.975 of Student's distribution, exact to 0.1 % from 7 degrees of freedom on.
fn student_t(freedom: f64) -> f64 {
    let z = Z_95;
    let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
    // The expansion of Cornish and Fisher.
    z + (z3 + z) / (4.0 * freedom)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * freedom.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * freedom.powi(3))
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
