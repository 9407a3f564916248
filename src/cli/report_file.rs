//! Writes a report to a file: the whole report, or nothing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::failure::CliFailure;

/// A file that is to hold a report. An existing one stays as it is until the new report is complete.
#[derive(Debug)]
pub(super) struct ReportFile {
    path: PathBuf,
    /// The unfinished file, in the same folder.
    part: PathBuf,
    file: File,
}

impl ReportFile {
    /// Creates the unfinished file, so that a path that can't be written to is refused before the work begins.
    pub(super) fn create(path: &Path) -> Result<ReportFile, CliFailure> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let created = match path.is_dir() {
            true => Err(io::Error::from(io::ErrorKind::IsADirectory)),
            false => File::create(&part),
        };
        match created {
            Ok(file) => Ok(ReportFile {
                path: path.to_owned(),
                part,
                file,
            }),
            Err(error) => Err(CliFailure::Report {
                path: path.to_owned(),
                error,
            }),
        }
    }

    /// Writes the report and gives the file its name.
    pub(super) fn finish(mut self, report: &str) -> Result<(), CliFailure> {
        let written = writeln!(self.file, "{report}");
        let written = written.and_then(|()| self.file.sync_all());
        let written = written.and_then(|()| fs::rename(&self.part, &self.path));
        written.map_err(|error| CliFailure::Report {
            path: self.path.clone(),
            error,
        })
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        // It is gone already if the report was finished.
        let _ = fs::remove_file(&self.part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_takes_the_place_of_the_last_one_only_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let names = || fs::read_dir(folder.path()).unwrap().count();
        ReportFile::create(&path).unwrap().finish("one").unwrap();
        let unfinished = ReportFile::create(&path).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), names()), ("one\n".to_owned(), 2));
        drop(unfinished);
        assert_eq!((fs::read_to_string(&path).unwrap(), names()), ("one\n".to_owned(), 1));
        ReportFile::create(&path).unwrap().finish("two").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), names()), ("two\n".to_owned(), 1));
        assert!(ReportFile::create(folder.path()).is_err());
        assert!(ReportFile::create(&folder.path().join("no/such/folder")).is_err());
    }
}
