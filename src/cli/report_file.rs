//! Writes a report to a file: the whole report, or nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::failure::CliFailure;

/// A file that is to hold a report. An existing one stays as it is until the new report is complete. A device or a pipe is written to.
#[derive(Debug)]
pub(super) struct ReportFile {
    path: PathBuf,
    /// The unfinished file, in the same folder; none if `path` is a device or a pipe.
    part: Option<PathBuf>,
    file: File,
}

impl ReportFile {
    /// Creates the unfinished file, so that a path that can't be written to is refused before the work begins.
    pub(super) fn create(path: &Path) -> Result<ReportFile, CliFailure> {
        // A link stays one: its target is replaced. One of the system's own leads to an open file.
        let of_system = ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder));
        let is_special = of_system || fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir());
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let part = (!is_special).then(|| {
            let mut part = target.as_os_str().to_owned();
            part.push(".part");
            PathBuf::from(part)
        });
        let created = match &part {
            None => OpenOptions::new().append(true).open(path),
            Some(_) if path.is_dir() => Err(io::Error::from(io::ErrorKind::IsADirectory)),
            Some(part) => File::create(part),
        };
        match created {
            Ok(file) => Ok(ReportFile {
                path: target,
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
        let written = writeln!(self.file, "{report}").and_then(|()| match &self.part {
            Some(part) => self.file.sync_all().and_then(|()| fs::rename(part, &self.path)),
            None => Ok(()),
        });
        written.map_err(|error| CliFailure::Report {
            path: self.path.clone(),
            error,
        })
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // It is gone already if the report was finished.
            let _ = fs::remove_file(part);
        }
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
    }

    /// Through links, so that no real device is at stake.
    #[test]
    fn devices_and_links_stay() {
        let folder = tempfile::tempdir().unwrap();
        let [device, link, file] = ["null", "link", "report.json"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink("/dev/null", &device).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        fs::write(&file, "old").unwrap();
        for path in [&device, &link] {
            ReportFile::create(path).unwrap().finish("one").unwrap();
            assert!(path.is_symlink());
        }
        assert!(!fs::metadata(&device).unwrap().is_file());
        assert_eq!(fs::read_to_string(&file).unwrap(), "one\n");
    }

    #[test]
    fn a_path_that_cannot_be_written_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(ReportFile::create(&folder.path().join("no/such/folder")).is_err());
    }
}
