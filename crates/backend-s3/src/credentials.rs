//! Credentials from a file in the format of Amazon's programs: `~/.aws/credentials`.
//!
//! The file is read again when it has changed, so that credentials can be replaced while a volume
//! is served. All other sources (environment, roles of machines and containers) are those of
//! `object_store`.

use object_store::aws::AwsCredential;
use object_store::{CredentialProvider, Error};
use std::ffi::OsString;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Why a file has no credentials.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("cannot read it")]
    Read(#[from] std::io::Error),
    #[error("it has no section [{0}]")]
    Profile(String),
    #[error("section [{profile}] has no {key}")]
    Key { profile: String, key: &'static str },
}

/// The credentials of a section of a file.
#[derive(Debug)]
pub(crate) struct CredentialFile {
    path: PathBuf,
    profile: String,
    read: Mutex<Option<(SystemTime, Arc<AwsCredential>)>>,
}

impl CredentialFile {
    /// Reads the file.
    ///
    /// # Errors
    /// If it does not have the credentials.
    pub(crate) fn open(path: &Path, profile: &str) -> Result<Self, FileError> {
        let file =
            Self { path: path.to_owned(), profile: profile.to_owned(), read: Mutex::new(None) };
        file.get()?;
        Ok(file)
    }

    fn get(&self) -> Result<Arc<AwsCredential>, FileError> {
        let changed = fs::metadata(&self.path)?.modified()?;
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, credential)) = &*read
            && *at == changed
        {
            return Ok(credential.clone());
        }
        let credential = Arc::new(parse(&fs::read_to_string(&self.path)?, &self.profile)?);
        *read = Some((changed, credential.clone()));
        Ok(credential)
    }
}

impl CredentialProvider for CredentialFile {
    type Credential = AwsCredential;

    fn get_credential<'a, 'b>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<AwsCredential>>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let found = self.get().map_err(|error| {
            let text = format!("credentials in {}: {error}", self.path.display());
            Error::Generic { store: "S3", source: text.into() }
        });
        Box::pin(std::future::ready(found))
    }
}

/// The file that Amazon's programs use, and the section in it, if the environment has no
/// credentials that come before it.
pub(crate) fn default_file() -> Option<(PathBuf, String)> {
    if variable("AWS_ACCESS_KEY_ID").is_some() {
        return None;
    }
    let path = match variable("AWS_SHARED_CREDENTIALS_FILE") {
        Some(path) => PathBuf::from(path),
        None => Path::new(&variable("HOME")?).join(".aws/credentials"),
    };
    let profile = std::env::var("AWS_PROFILE").ok().filter(|profile| !profile.is_empty());
    path.exists().then(|| (path, profile.unwrap_or_else(|| "default".to_owned())))
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn parse(text: &str, profile: &str) -> Result<AwsCredential, FileError> {
    let mut is_inside = false;
    let mut has_section = false;
    let (mut key_id, mut secret_key, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_inside = name.trim() == profile;
            has_section |= is_inside;
        } else if is_inside
            && !line.starts_with(['#', ';'])
            && let Some((key, value)) = line.split_once('=')
        {
            let value = Some(value.trim().to_owned());
            match key.trim().to_ascii_lowercase().as_str() {
                "aws_access_key_id" => key_id = value,
                "aws_secret_access_key" => secret_key = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    if !has_section {
        return Err(FileError::Profile(profile.to_owned()));
    }
    let key = if key_id.is_none() { "aws_access_key_id" } else { "aws_secret_access_key" };
    match (key_id, secret_key) {
        (Some(key_id), Some(secret_key)) => Ok(AwsCredential { key_id, secret_key, token }),
        _ => Err(FileError::Key { profile: profile.to_owned(), key }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_of_a_profile_is_read() {
        let text = "[default]\naws_access_key_id = A\naws_secret_access_key=b=c\n\
                    # [x]\n[ other ]\naws_access_key_id=O\nAWS_SECRET_ACCESS_KEY = p\n\
                    aws_session_token = t\nregion = r\n[half]\naws_access_key_id=H\n";
        let found = parse(text, "default").unwrap();
        assert_eq!((&*found.key_id, &*found.secret_key, found.token), ("A", "b=c", None));
        let found = parse(text, "other").unwrap();
        assert_eq!((&*found.key_id, &*found.secret_key), ("O", "p"));
        assert_eq!(found.token.as_deref(), Some("t"));
        let text_of = |profile| parse(text, profile).unwrap_err().to_string();
        assert_eq!(text_of("half"), "section [half] has no aws_secret_access_key");
        assert_eq!(text_of("none"), "it has no section [none]");
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials");
        let text = |key: &str| format!("[p]\naws_access_key_id={key}\naws_secret_access_key=s\n");
        fs::write(&path, text("one")).unwrap();
        let file = CredentialFile::open(&path, "p").unwrap();
        assert_eq!(file.get().unwrap().key_id, "one");
        fs::write(&path, text("two")).unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(2);
        fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(file.get().unwrap().key_id, "two");
        assert!(CredentialFile::open(&path, "q").is_err());
    }
}
