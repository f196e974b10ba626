//! Tokens of the dashboard and their roles.
//!
//! A token file has a line `look TOKEN` or `operate TOKEN` for each token, and comments that begin
//! with `#`. It must belong to the daemon's user or to root, and no other user may read it.

use forebay_types::{Action, Fault, Remedy};
use rustix::{
    fs::{FileType, Mode, OFlags, fstat, open},
    process::geteuid,
    rand::{GetRandomFlags, getrandom},
};
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Shortest token, in bytes: `openssl rand -hex 16` has 32.
pub const TOKEN_BYTES_MIN: usize = 20;
/// Longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 200;
/// Limit of tokens in a file.
const TOKENS_MAX: usize = 64;
/// Random bytes of a generated token.
const RANDOM_BYTES: usize = 16;
/// Largest token file, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What the holder of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TokenRole {
    /// Read.
    Look,
    /// Read and change.
    Operate,
}

impl TokenRole {
    /// The word in token files and in answers.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Operate => "operate",
        }
    }
}

/// Why the token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be opened or read.
    #[error("cannot read the token file {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Other users could read or replace the tokens.
    #[error("token file {} {problem}", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
    /// It is not a file, but a directory or a pipe, for example.
    #[error("token file {} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    /// A line is not a role and a token.
    #[error("token file {}, line {line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// The problem. It does not quote the line, which may have a token.
        problem: String,
    },
    /// There is no token in the file.
    #[error("token file {} has no token", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl Fault for TokenError {
    fn remedy(&self) -> Remedy {
        const FORM: &str =
            "write a line 'look TOKEN' or 'operate TOKEN'; `openssl rand -hex 16` makes a token";
        match self {
            Self::Unreadable { .. } | Self::NotAFile { .. } => {
                Remedy::from(Action::set("dashboard-tokens", "FILE"))
            }
            Self::Exposed { path, .. } => {
                format!("chown it to the daemon's user, and chmod 600 {}", path.display()).into()
            }
            Self::Line { .. } | Self::Empty { .. } => FORM.into(),
        }
    }
}

/// The tokens of a dashboard.
#[derive(Clone)]
pub struct Tokens {
    tokens: Vec<(TokenRole, String)>,
    /// Whether requests without a token may read.
    is_reading_free: bool,
}

/// Shows no token.
impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens", self.tokens.len())
    }
}

impl Tokens {
    /// A random token for changes; reading needs none. Only for addresses that no other machine can
    /// reach.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        let mut filled = 0;
        while filled < RANDOM_BYTES {
            filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
        }
        let token = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { tokens: vec![(TokenRole::Operate, token)], is_reading_free: true })
    }

    /// Reads a token file. Every request then needs one of its tokens.
    ///
    /// # Errors
    /// The file cannot be read, other users could read or replace it, or its content is invalid.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let text = read_secret(path)?;
        let fault = |line, problem: String| TokenError::Line { path: path.into(), line, problem };
        let mut tokens: Vec<(TokenRole, String)> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            let (role, token) = match words[..] {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                ["look", token] => (TokenRole::Look, token),
                ["operate", token] => (TokenRole::Operate, token),
                _ => return Err(fault(index + 1, "not a role and a token".into())),
            };
            if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
                let problem = format!(
                    "a token has {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} characters, this one {}",
                    token.len()
                );
                return Err(fault(index + 1, problem));
            }
            if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(fault(index + 1, "a token consists of visible ASCII".into()));
            }
            if tokens.iter().any(|(_, other)| other == token) {
                return Err(fault(index + 1, "the same token is given twice".into()));
            }
            tokens.push((role, token.to_owned()));
            if tokens.len() > TOKENS_MAX {
                return Err(fault(index + 1, format!("more than {TOKENS_MAX} tokens")));
            }
        }
        if tokens.is_empty() {
            return Err(TokenError::Empty { path: path.into() });
        }
        Ok(Self { tokens, is_reading_free: false })
    }

    /// The first token for reading, which a host of a site sends to the others.
    pub fn look(&self) -> Option<&str> {
        let found = self.tokens.iter().find(|(role, _)| *role == TokenRole::Look);
        found.map(|(_, token)| token.as_str())
    }

    /// Whether a request without a token may read.
    pub(super) fn is_reading_free(&self) -> bool {
        self.is_reading_free
    }

    /// The role of a presented token. Takes the same time for each wrong token of a length.
    pub(super) fn role_of(&self, presented: &str) -> Option<TokenRole> {
        let found = self.tokens.iter().filter(|(_, token)| are_equal(token, presented));
        found.map(|(role, _)| *role).max()
    }

    /// The token that was generated, for the operator's link.
    pub(super) fn generated(&self) -> Option<&str> {
        let token = self.tokens.first().map(|(_, token)| token.as_str());
        token.filter(|_| self.is_reading_free)
    }
}

/// Compares two texts in a time that does not depend on where they differ.
fn are_equal(left: &str, right: &str) -> bool {
    let pairs = left.bytes().zip(right.bytes());
    left.len() == right.len() && pairs.fold(0, |differences, (l, r)| differences | (l ^ r)) == 0
}

/// Reads a file that only its owner may read.
fn read_secret(path: &Path) -> Result<String, TokenError> {
    let unreadable = |source| TokenError::Unreadable { path: path.into(), source };
    let exposed = |problem: String| TokenError::Exposed { path: path.into(), problem };
    // A pipe without a writer must not block the start.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::empty()).map_err(|error| unreadable(error.into()))?;
    // The opened file is checked, not the path, which could be replaced in between.
    let found = fstat(&file).map_err(|error| unreadable(error.into()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(TokenError::NotAFile { path: path.into() });
    }
    let mode = found.st_mode & 0o777;
    if mode & 0o077 != 0 {
        return Err(exposed(format!("has mode {mode:04o}, so other users have access")));
    }
    if found.st_uid != 0 && found.st_uid != geteuid().as_raw() {
        return Err(exposed(format!("belongs to user {}", found.st_uid)));
    }
    let mut text = String::new();
    File::from(file).take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(unreadable(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 64 KiB")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    fn read(text: &str, mode: u32) -> Result<Tokens, TokenError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Tokens::read(&path)
    }

    const LOOK: &str = "0123456789abcdef-look";
    const OPERATE: &str = "0123456789abcdef-operate";

    #[test]
    fn a_file_that_is_too_large_is_refused_as_a_whole() {
        let text = format!("look {LOOK}\n{}", "# a comment\n".repeat(6000));
        let error = read(&text, 0o600).unwrap_err();
        assert!(error.explained().contains("larger than 64 KiB"), "{}", error.explained());
    }

    #[test]
    fn each_token_has_its_role() {
        let text = format!("# for the wall\nlook {LOOK}\n\n  operate\t{OPERATE}\n");
        let tokens = read(&text, 0o600).unwrap();
        assert_eq!(tokens.role_of(LOOK), Some(TokenRole::Look));
        assert_eq!(tokens.role_of(OPERATE), Some(TokenRole::Operate));
        for wrong in ["", "look", &LOOK[1..], &format!("{LOOK}x"), &LOOK.to_uppercase()] {
            assert_eq!(tokens.role_of(wrong), None, "{wrong}");
        }
        assert!(!tokens.is_reading_free() && tokens.generated().is_none());
        assert!(!format!("{tokens:?}").contains(LOOK));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let text = format!("look {LOOK}");
        for mode in [0o640, 0o604, 0o620, 0o601, 0o777] {
            let error = read(&text, mode).unwrap_err();
            assert!(matches!(error, TokenError::Exposed { .. }), "{error}");
            assert!(error.remedy().to_string().contains("chmod 600"));
        }
        assert!(read(&text, 0o400).is_ok());
        let directory = tempfile::tempdir().unwrap();
        let error = Tokens::read(directory.path()).unwrap_err();
        assert!(error.to_string().ends_with("is not a regular file"), "{error}");
        let error = Tokens::read(&directory.path().join("none")).unwrap_err();
        assert!(matches!(error, TokenError::Unreadable { .. }), "{error}");
    }

    #[test]
    fn a_malformed_line_is_refused_without_its_token() {
        for (text, part) in [
            (format!("look {LOOK}\nwrite {OPERATE}"), "line 2: not a role and a token"),
            (format!("look {LOOK} {OPERATE}"), "line 1: not a role and a token"),
            ("operate short".into(), "has 20 to 200 characters, this one 5"),
            (format!("look {}", "x".repeat(201)), "this one 201"),
            (format!("look {LOOK}ü"), "visible ASCII"),
            (format!("look {LOOK}\noperate {LOOK}"), "line 2: the same token"),
            ("# nothing".into(), "has no token"),
            (String::new(), "has no token"),
        ] {
            let error = read(&text, 0o600).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains(LOOK), "{error}");
        }
    }

    #[test]
    fn generated_tokens_differ_and_are_for_changes() {
        let [first, second] = [(); 2].map(|()| Tokens::generate().unwrap());
        let token = first.generated().unwrap();
        assert_eq!(token.len(), 2 * RANDOM_BYTES);
        assert_eq!(first.role_of(token), Some(TokenRole::Operate));
        assert_eq!(second.role_of(token), None);
        assert!(first.is_reading_free());
    }
}
