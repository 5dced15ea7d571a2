//! Samples that belong together, of one subject, patient or video: they are held out together, or a model is measured on what it has
//! all but seen.
//!
//! It does not know how many are held out; see `split.rs`.

use std::collections::BTreeMap;

/// Names with numbers in the order of first sight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    ids: BTreeMap<String, u32>,
    names: Vec<String>,
}

impl Names {
    /// The number of a name.
    pub fn id(&mut self, name: &str) -> u32 {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.names.len() as u32;
        self.ids.insert(name.to_owned(), id);
        self.names.push(name.to_owned());
        id
    }

    /// The name with this number.
    pub fn name(&self, id: u32) -> &str {
        &self.names[id as usize]
    }

    /// All names in alphabetical order, each with its number.
    pub fn sorted(&self) -> impl Iterator<Item = (&str, u32)> {
        self.ids.iter().map(|(name, id)| (name.as_str(), *id))
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }
}

/// The group of each row of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Groups {
    pub names: Names,
    /// By row.
    pub of: Vec<u32>,
}

impl Groups {
    /// Those of rows with these names.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut groups = Self::default();
        names.for_each(|name| groups.push(name));
        groups
    }

    /// Adds a row of this group.
    pub fn push(&mut self, name: &str) {
        let id = self.names.id(name);
        self.of.push(id);
    }

    /// The names in numerical order where they are numbers, else in alphabetical order.
    pub fn shown<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_by_cached_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        names
    }
}

/// Which groups are held out, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOutGroups {
    /// Those that are held out.
    pub names: Vec<String>,
    /// All that there are.
    pub all: usize,
}

impl HeldOutGroups {
    /// Of a file for training and one for validation.
    pub(crate) fn of_two(train: &Groups, val: &Groups) -> Self {
        let mut all = train.names.clone();
        val.names.sorted().for_each(|(name, _)| {
            all.id(name);
        });
        Self { names: Groups::shown(val.names.sorted().map(|(name, _)| name)), all: all.len() }
    }
}
