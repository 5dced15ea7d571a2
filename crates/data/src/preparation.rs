//! What turns a sample as people have it into what a model was trained on, and an output back into their units.
//!
//! It is made while the training data are opened, is part of every checkpoint, and is all that a prediction needs to know
//! of the data. It does not know where either lies.

use crate::{ClipForm, Cut, InputSpec, PictureForm, SampleSpec, TargetSpec, WindowForm};
use serde::{Deserialize, Serialize};

/// What became of the columns, values and labels of the training data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preparation {
    /// What the inputs of a sample are.
    pub input: InputSpec,
    /// What is predicted.
    pub target: TargetSpec,
    /// The columns of a table, in the order of the file; none for other kinds of data.
    pub columns: Vec<ColumnUse>,
    /// Whether the training table had a line of names.
    pub header: bool,
    /// What is subtracted from the input values, per channel or feature. `f32` values, written as `f64` so that they
    /// survive any text.
    pub mean: Vec<f64>,
    /// What they are multiplied by then.
    pub factor: Vec<f64>,
    /// A name per class; empty where none is known.
    pub class_names: Vec<String>,
    /// How many training samples each class has; empty where nobody counted.
    pub class_counts: Vec<u64>,
    /// How the targets of a regression were standardised, if they were.
    pub targets: Option<TargetScale>,
    /// What files of images become, where they are the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picture: Option<PictureForm>,
    /// What clips become, where they are the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<ClipForm>,
    /// How recordings are cut, where windows of them are the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<WindowForm>,
    /// What is taken of pictures, where that is not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// The column of the classes of pictures in Parquet files, where it is not called `label`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// One column of the training table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnUse {
    /// What the header calls it.
    pub name: Option<String>,
    /// What became of it.
    pub role: Role,
}

impl ColumnUse {
    /// Whether both make the same features of a field, but for what stands for missing numbers, which follows from the others.
    fn is_that_of(&self, other: &Self) -> bool {
        let alike = match (&self.role, &other.role) {
            (Role::Number { .. }, Role::Number { .. }) => true,
            (one, other) => one == other,
        };
        alike && self.name == other.name
    }
}

/// What a column is used for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// An input as it is.
    Number {
        /// What stands for a value that is missing: the mean of the training rows that have one; none where missing values
        /// are refused.
        fill: Option<f64>,
        /// Training rows without a value.
        missing: u64,
    },
    /// As many inputs as there are words, of which the one that stands there is 1.
    Category {
        /// The words of the training table, in alphabetical order.
        words: Vec<String>,
        /// Training rows without a word: all inputs are 0. None where they are refused.
        missing: Option<u64>,
        /// What a word that no training row has comes to.
        unseen: Unseen,
    },
    /// What is predicted.
    Target,
    /// Nothing.
    LeftOut(LeftOut),
}

/// Why a column is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    /// The configuration says so.
    AsAsked,
    /// Every value is a date or a time.
    Date,
    /// Every row has another value: it says which row it is, and nothing about it.
    Id,
    /// It has more words than [`crate::MOST_WORDS`].
    ManyWords,
    /// No row has a value.
    Empty,
    /// It says which rows belong together.
    Group,
    /// It is the time of a row.
    Time,
    /// It has words, where channels are wanted.
    Words,
}

impl LeftOut {
    /// In a sentence that begins with the column: "day is ...".
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::AsAsked => "as data.columns says",
            Self::Date => "a date",
            Self::Id => "another value in every row",
            Self::ManyWords => "too many different words",
            Self::Empty => "empty",
            Self::Group => "the group",
            Self::Time => "the time",
            Self::Words => "words",
        }
    }
}

/// What a word that no training row has comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unseen {
    /// As if there were no word: all inputs of the column are 0.
    #[default]
    Ignore,
    /// An error that names it.
    Refuse,
}

/// Mean and deviation of each target over the training rows. *Units*: those of the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetScale {
    /// What was subtracted.
    pub mean: Vec<f64>,
    /// What was divided by.
    pub deviation: Vec<f64>,
}

impl TargetScale {
    /// A target or an output of the model in the table's own unit.
    #[must_use]
    pub fn restore(&self, target: usize, value: f32) -> f64 {
        f64::from(value) * self.deviation[target] + self.mean[target]
    }

    /// What a model is trained on.
    #[must_use]
    pub fn standardise(&self, target: usize, value: f64) -> f32 {
        ((value - self.mean[target]) / self.deviation[target]) as f32
    }
}

impl Preparation {
    /// That of data that are used as they are.
    #[must_use]
    pub fn plain(spec: &SampleSpec, class_names: Vec<String>) -> Self {
        Self {
            input: spec.input.clone(),
            target: spec.target.clone(),
            columns: Vec::new(),
            header: false,
            mean: Vec::new(),
            factor: Vec::new(),
            class_names,
            class_counts: Vec::new(),
            targets: None,
            picture: None,
            clip: None,
            window: None,
            cut: None,
            label: None,
        }
    }

    /// What a prepared sample looks like.
    #[must_use]
    pub fn spec(&self) -> SampleSpec {
        SampleSpec { input: self.input.clone(), target: self.target.clone() }
    }

    /// Whether samples are prepared alike by both. Numbers that went through a text may differ in their last digit.
    #[must_use]
    pub fn is_that_of(&self, other: &Self) -> bool {
        let near = |a: &[f64], b: &[f64]| {
            let same = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * a.abs().max(b.abs());
            a.len() == b.len() && a.iter().zip(b).all(same)
        };
        let scales = match (&self.targets, &other.targets) {
            (None, None) => true,
            (Some(a), Some(b)) => near(&a.mean, &b.mean) && near(&a.deviation, &b.deviation),
            _ => false,
        };
        let columns = || self.columns.iter().zip(&other.columns).all(|(a, b)| a.is_that_of(b));
        scales
            && near(&self.mean, &other.mean)
            && near(&self.factor, &other.factor)
            && self.columns.len() == other.columns.len()
            && columns()
            && (&self.input, &self.target, &self.class_names)
                == (&other.input, &other.target, &other.class_names)
    }

    /// What a class is called: its name, or its number.
    #[must_use]
    pub fn class_name(&self, class: usize) -> String {
        self.class_names.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    /// What a sample as people have it looks like: before it is cut.
    #[must_use]
    pub fn whole(&self) -> InputSpec {
        match (&self.input, self.cut) {
            (InputSpec::Values { shape }, Some(cut)) => {
                let mut shape = shape.clone();
                if let [.., height, width] = &mut shape[..] {
                    [*height, *width] = cut.from;
                }
                InputSpec::Values { shape }
            }
            (input, _) => input.clone(),
        }
    }

    /// The raw values of a whole sample, cut as those of validation are.
    #[must_use]
    pub fn middle(&self, values: Vec<f32>) -> Vec<f32> {
        match self.cut {
            Some(cut) => cut.middle(&values, values.len() / (cut.from[0] * cut.from[1])),
            None => values,
        }
    }

    /// Brings the raw values of a sample, its channels one after the other, to what the model was trained on.
    pub fn normalise(&self, values: &mut [f32]) {
        if self.mean.is_empty() {
            return;
        }
        let plane = values.len() / self.mean.len();
        for (values, (mean, factor)) in
            values.chunks_exact_mut(plane.max(1)).zip(self.mean.iter().zip(&self.factor))
        {
            let (mean, factor) = (*mean as f32, *factor as f32);
            values.iter_mut().for_each(|value| *value = (*value - mean) * factor);
        }
    }

    /// A value of a target in its own unit.
    #[must_use]
    pub fn restore(&self, target: usize, value: f32) -> f64 {
        self.targets.as_ref().map_or(f64::from(value), |scale| scale.restore(target, value))
    }
}
