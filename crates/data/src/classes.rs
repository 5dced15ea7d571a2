//! How the classes of a data set are spread: for people, and for balanced class weights.

use crate::{Batch, DataError, Dataset, Elements, EvaluationPlan, IGNORED, TargetSpec};
use dtrain_types::{MicroBatch, counted};
use std::fmt;

/// How many classes the text for people lists before it says "and more".
const SHOWN: usize = 20;
/// Samples read at a time where labels are only known by reading.
const ROWS: u32 = 64;

/// Counts per class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassDistribution {
    counts: Vec<u64>,
    names: Vec<String>,
}

impl ClassDistribution {
    /// How often each class occurs.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// How many labels were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The classes that never occur.
    pub fn absent(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.counts).filter(|(_, count)| **count == 0).map(|(class, _)| class)
    }

    /// What a class is called: its name, or its number.
    #[must_use]
    pub fn name(&self, class: u32) -> String {
        self.names.get(class as usize).cloned().unwrap_or_else(|| class.to_string())
    }

    /// Shows these names instead of numbers; classes without a name keep their number.
    #[must_use]
    pub fn named(mut self, names: &[String]) -> Self {
        self.names = names.to_vec();
        self
    }
}

/// Counts the classes of a data set; `None` if it does not predict classes.
///
/// *Errors*: what reading gives, for a data set whose labels are only known by reading.
pub fn class_distribution(dataset: &dyn Dataset) -> Result<Option<ClassDistribution>, DataError> {
    let spec = dataset.spec();
    let Some(classes) = spec.classes() else { return Ok(None) };
    let mut counts = vec![0u64; classes as usize];
    let labelled = matches!(spec.target, TargetSpec::Class { .. }) && !dataset.is_empty();
    if labelled && dataset.label(0).is_some() {
        for sample in 0..dataset.len() {
            let class = dataset.label(sample).ok_or(DataError::NoClassSet { sample })?;
            *counts.get_mut(class as usize).ok_or(DataError::ClassOutOfRange {
                sample,
                class,
                classes,
            })? += 1;
        }
    } else {
        let plan = EvaluationPlan::new(dataset.len(), ROWS);
        let mut batch = Batch::new(&spec, ROWS as usize);
        for micro_batch in 0..plan.micro_batches() {
            plan.read(dataset, MicroBatch(micro_batch), &mut batch)?;
            let Elements::U32(targets) = batch.targets() else { unreachable!("classes are u32") };
            targets.iter().filter(|class| **class != IGNORED).for_each(|class| counts[*class as usize] += 1);
        }
    }
    Ok(Some(ClassDistribution { counts, names: Vec::new() }))
}

impl fmt::Display for ClassDistribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}:", counted(self.counts.len(), "class"), counted(self.total(), "label"))?;
        let total = self.total().max(1) as f64;
        for (class, count) in self.counts.iter().enumerate().take(SHOWN) {
            let comma = if class == 0 { "" } else { "," };
            match self.names.get(class) {
                Some(name) => write!(f, "{comma} {name}")?,
                None => write!(f, "{comma} {class}")?,
            }
            write!(f, " {count} ({:.1} %)", *count as f64 / total * 100.0)?;
        }
        match self.counts.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
