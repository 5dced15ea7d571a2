//! Figures of predicted numbers, in their own units.

/// Adds up predictions of numbers.
#[derive(Clone, Debug)]
pub struct ValueFigures {
    targets: Vec<Sums>,
    samples: u64,
}

/// What is added up of one target. Targets are shifted by the first one, which keeps squares exact where they are large.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    first: f64,
    target: f64,
    target_squares: f64,
    absolute: f64,
    squares: f64,
}

/// What is known of one target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueRow {
    /// Root of the mean squared error.
    pub rmse: f64,
    /// Mean absolute error.
    pub mae: f64,
    /// Coefficient of determination; none where all targets are the same.
    pub r2: Option<f64>,
}

impl ValueFigures {
    /// Nothing yet of so many targets.
    #[must_use]
    pub fn new(targets: usize) -> Self {
        Self { targets: vec![Sums::default(); targets], samples: 0 }
    }

    /// Adds a sample, of each target what is true and what was predicted.
    pub fn add(&mut self, pairs: impl IntoIterator<Item = (f64, f64)>) {
        for (sums, (target, predicted)) in self.targets.iter_mut().zip(pairs) {
            if self.samples == 0 {
                sums.first = target;
            }
            let (shifted, error) = (target - sums.first, predicted - target);
            sums.target += shifted;
            sums.target_squares += shifted * shifted;
            sums.absolute += error.abs();
            sums.squares += error * error;
        }
        self.samples += 1;
    }

    /// How many samples there were.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The figures of each target.
    #[must_use]
    pub fn rows(&self) -> Vec<ValueRow> {
        let count = self.samples.max(1) as f64;
        let row = |sums: &Sums| {
            let spread = sums.target_squares - sums.target * sums.target / count;
            let r2 = (spread > 0.0).then(|| 1.0 - sums.squares / spread);
            ValueRow { rmse: (sums.squares / count).sqrt(), mae: sums.absolute / count, r2 }
        };
        self.targets.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_textbook_far_from_zero_too() {
        let mut figures = ValueFigures::new(1);
        for (target, predicted) in [(300_000.0, 300_001.0), (300_002.0, 300_002.0), (300_004.0, 300_002.0)] {
            figures.add([(target, predicted)]);
        }
        let row = figures.rows()[0];
        assert!((row.rmse - (5.0f64 / 3.0).sqrt()).abs() < 1e-12 && (row.mae - 1.0).abs() < 1e-12);
        assert!((row.r2.unwrap() - (1.0 - 5.0 / 8.0)).abs() < 1e-12);
        let mut same = ValueFigures::new(1);
        same.add([(1.0, 1.5)]);
        assert_eq!(same.rows()[0].r2, None);
    }
}
