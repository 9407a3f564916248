//! Says how the constraints of a collection are ended, which is the way out of many refusals.

use std::fmt;

use crate::constraint::Constraint;

/// The ways to end constraints: those of the configuration file end with a reload, those that clients made with `dropIndexes`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConstraintRemoval {
    of_file: Vec<String>,
    of_clients: Vec<String>,
}

impl ConstraintRemoval {
    /// How all of these constraints are ended.
    pub fn of<'a>(constraints: impl IntoIterator<Item = &'a Constraint>) -> Self {
        let mut removal = ConstraintRemoval::default();
        for constraint in constraints {
            let names = match constraint.client_entry() {
                None => &mut removal.of_file,
                Some(_) => &mut removal.of_clients,
            };
            names.push(constraint.name().to_owned());
        }
        removal
    }
}

impl fmt::Display for ConstraintRemoval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = [
            (!self.of_file.is_empty()).then(|| format!("take {} out of Keyward's configuration", named(&self.of_file))),
            (!self.of_clients.is_empty()).then(|| format!("end {} with dropIndexes", named(&self.of_clients))),
        ];
        let ways: Vec<String> = ways.into_iter().flatten().collect();
        formatter.write_str(&ways.join(" and "))
    }
}

fn named(constraints: &[String]) -> String {
    let plural = if constraints.len() == 1 { "" } else { "s" };
    format!("unique constraint{plural} {}", constraints.join(", "))
}
