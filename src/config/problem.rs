//! Describes the problems of a configuration file: the position, the setting and the reason.
//!
//! Problems are collected, so that one run of `keyward check` shows all of them. They never quote a setting's value
//! that could be a secret.

use std::fmt;
use std::path::PathBuf;

/// One step from the top of the file to a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    /// The value of a mapping's field.
    Field(String),
    /// An item of a list, counted from 0.
    Item(usize),
}

/// The path from the top of the file to a setting, as in `constraints[0].key`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SettingPath(Vec<PathStep>);

impl SettingPath {
    /// The whole file.
    pub fn top() -> Self {
        Self::default()
    }

    /// The field `name` of the mapping at this path.
    pub fn field(&self, name: &str) -> Self {
        self.followed_by(PathStep::Field(name.to_owned()))
    }

    /// Item `index` of the list at this path, counted from 0.
    pub fn item(&self, index: usize) -> Self {
        self.followed_by(PathStep::Item(index))
    }

    /// The steps from the top.
    pub fn steps(&self) -> &[PathStep] {
        &self.0
    }

    fn followed_by(&self, step: PathStep) -> Self {
        SettingPath(self.0.iter().cloned().chain([step]).collect())
    }
}

impl FromIterator<PathStep> for SettingPath {
    fn from_iter<I: IntoIterator<Item = PathStep>>(steps: I) -> Self {
        SettingPath(steps.into_iter().collect())
    }
}

impl fmt::Display for SettingPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                PathStep::Field(name) if index == 0 => write!(f, "{name}")?,
                PathStep::Field(name) => write!(f, ".{name}")?,
                PathStep::Item(item) => write!(f, "[{item}]")?,
            }
        }
        Ok(())
    }
}

/// A place in the file; both numbers count from 1, the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePosition {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// One problem of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The position in the file, if the setting or one around it is there.
    pub position: Option<FilePosition>,
    /// The setting; the top of the file if the problem concerns no single setting.
    pub path: SettingPath,
    /// Why it is refused.
    pub reason: String,
}

/// All problems of one file, in the file's order; printed one on each line, as `file:line:column: setting: reason`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problems {
    /// The file as the user named it.
    pub file: PathBuf,
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:", self.file.display())?;
            if let Some(FilePosition { line, column }) = problem.position {
                write!(f, "{line}:{column}:")?;
            }
            if !problem.path.steps().is_empty() {
                write!(f, " {}:", problem.path)?;
            }
            write!(f, " {}", problem.reason)?;
        }
        Ok(())
    }
}
