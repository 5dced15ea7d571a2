//! Where the label, the group and the time are among the columns, by the first line of a table.

use super::lines::{ColumnRef, Line};
use super::options::{Column, CsvOptions, Missing};
use crate::DataError;
use crate::preparation::{ColumnUse, LeftOut, Role};
use dtrain_types::counted;

/// Where the label is among how many columns.
pub(super) struct Layout {
    pub columns: usize,
    pub label: usize,
    /// Which column says what belongs together, if one does.
    pub group: Option<usize>,
    /// Which column is the time, if one is.
    pub time: Option<usize>,
    /// What the header calls the columns; empty without a header.
    pub names: Vec<String>,
}

impl Layout {
    /// What the first line says.
    pub fn of(first: &Line<'_>, options: &CsvOptions) -> Result<Self, DataError> {
        let fields = first.fields();
        let is_header = options.header.unwrap_or_else(|| {
            let named =
                |column: &Column| matches!(column, Column::Name(name) if fields.iter().any(|field| field == name));
            named(&options.label)
                || [&options.group, &options.time].into_iter().flatten().any(named)
                || fields.iter().all(|field| field.parse::<f64>().is_err())
        });
        let place = |wanted: &Column| {
            let place = match wanted {
                Column::Last => fields.len().checked_sub(1),
                Column::Index(index) => Some(*index).filter(|index| *index < fields.len()),
                Column::Name(name) => fields.iter().position(|field| is_header && field == name),
            };
            let columns = match (wanted, is_header) {
                (Column::Name(_), true) => fields.join(", "),
                (Column::Name(_), false) => format!("{} without names", counted(fields.len(), "column")),
                _ => counted(fields.len(), "column"),
            };
            let (file, column) = (options.path.clone(), wanted.to_string());
            place.ok_or(DataError::NoSuchColumn { file, column, columns })
        };
        let optional = |wanted: &Option<Column>| wanted.as_ref().map(place).transpose();
        let (label, group, time) =
            (place(&options.label)?, optional(&options.group)?, optional(&options.time)?);
        let roles = match (group, time) {
            _ if group == Some(label) => Some((&options.label, "the label and the group")),
            _ if time == Some(label) => Some((&options.label, "the label and the time")),
            (Some(one), Some(other)) if one == other => {
                options.group.as_ref().zip(Some("the group and the time"))
            }
            _ => None,
        };
        if let Some((column, roles)) = roles {
            let (file, column) = (options.path.clone(), column.to_string());
            return Err(DataError::TwoRoles { file, column, roles });
        }
        let names = if is_header { fields.iter().map(ToString::to_string).collect() } else { Vec::new() };
        Ok(Self { columns: fields.len(), label, group, time, names })
    }

    /// All columns but the label as numbers, none of which is missing in the training table.
    pub fn numbers(&self, missing: Missing) -> Vec<ColumnUse> {
        let fill = (missing == Missing::Fill).then_some(0.0);
        let role = |column| match column == self.label {
            true => Role::Target,
            false => self.beside(column).map_or(Role::Number { fill, missing: 0 }, Role::LeftOut),
        };
        (0..self.columns).map(|at| ColumnUse { name: self.names.get(at).cloned(), role: role(at) }).collect()
    }

    /// What a column is that is no input and no label.
    pub fn beside(&self, column: usize) -> Option<LeftOut> {
        match Some(column) {
            at if at == self.group => Some(LeftOut::Group),
            at if at == self.time => Some(LeftOut::Time),
            _ => None,
        }
    }

    pub fn at(&self, column: usize) -> ColumnRef<'_> {
        ColumnRef { column, name: self.names.get(column).map(String::as_str) }
    }
}
