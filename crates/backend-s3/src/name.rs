//! Names of volumes: `s3://BUCKET/PREFIX?OPTION=VALUE&…`.

use crate::S3Error;
use crate::addressing::Addressing;
use forebay_backend::{Fields, duration_ns, percent_decode, size_bytes, switch};
use forebay_objects::SECTORS_MAX;
use forebay_types::SECTOR_BYTES;
use std::path::PathBuf;
use std::time::Duration;

const OPTIONS: [&str; 11] = [
    "size",
    "grow",
    "endpoint",
    "addressing",
    "region",
    "credentials",
    "profile",
    "ca",
    "object",
    "buffer",
    "keep",
];
/// Size of objects by default: large enough that requests cost little beside bytes.
const OBJECT_BYTES: u64 = 16 << 20;
/// Objects in the buffer by default.
const BUFFER_OBJECTS: u64 = 4;
/// How long objects are kept that are not needed any more, by default.
const KEEP: Duration = Duration::from_secs(3600);

/// A volume in a bucket, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct S3Name {
    pub(crate) bucket: String,
    pub(crate) prefix: String,
    /// The size to create the volume with.
    pub(crate) size_bytes: Option<u64>,
    /// Whether a smaller volume becomes as large.
    pub(crate) grow: bool,
    pub(crate) endpoint: Option<String>,
    /// `None` for what fits the endpoint.
    pub(crate) addressing: Option<Addressing>,
    pub(crate) region: Option<String>,
    /// The file with credentials, and the section in it.
    pub(crate) credentials: Option<(PathBuf, String)>,
    /// A file with the certificates of authorities.
    pub(crate) ca: Option<PathBuf>,
    pub(crate) object_sectors: u64,
    pub(crate) buffer_sectors: u64,
    pub(crate) keep: Duration,
}

impl S3Name {
    /// Parses a name.
    ///
    /// # Errors
    /// If it is malformed.
    pub(crate) fn parse(name: &str) -> Result<Self, S3Error> {
        let rest = name.strip_prefix("s3://").unwrap_or_default();
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = place.split_once('/').unwrap_or_default();
        let (bucket, prefix) = (percent_decode(bucket)?, percent_decode(prefix)?);
        if !is_plain(&bucket) || !prefix.split('/').all(is_plain) {
            return Err(S3Error::Name { name: name.to_owned() });
        }
        let fields = Fields::parse("s3", options, '&', &OPTIONS)?;
        let endpoint = owned(&fields, "endpoint");
        if let Some(endpoint) = endpoint.as_ref().filter(|endpoint| !is_endpoint(endpoint)) {
            return Err(S3Error::Endpoint { endpoint: endpoint.clone() });
        }
        let profile = owned(&fields, "profile");
        let credentials = path(&fields, "credentials")?;
        if credentials.is_none() && profile.is_some() {
            return Err(fields.missing("credentials", "/etc/forebay/s3-credentials").into());
        }
        let profile = profile.unwrap_or_else(|| "default".to_owned());
        let object = fields.get("object", "16MiB, from 1MiB to 32MiB", |text| {
            whole(text).filter(|bytes| (1 << 20..=32 << 20).contains(bytes))
        })?;
        let object = object.unwrap_or(OBJECT_BYTES);
        let buffer = fields.get("buffer", "64MiB, at least two objects", |text| {
            whole(text).filter(|bytes| *bytes >= 2 * object)
        })?;
        let keep = fields.get("keep", "1h", duration_ns)?.map(Duration::from_nanos);
        Ok(Self {
            bucket,
            prefix,
            size_bytes: fields.get("size", "100GiB", whole)?,
            grow: fields.get("grow", "on", switch)?.unwrap_or(false),
            endpoint,
            addressing: fields.get("addressing", "virtual, or path", Addressing::parse)?,
            region: owned(&fields, "region"),
            credentials: credentials.map(|path| (path, profile)),
            ca: path(&fields, "ca")?,
            object_sectors: (object / SECTOR_BYTES).min(SECTORS_MAX),
            buffer_sectors: buffer.unwrap_or(BUFFER_OBJECTS * object) / SECTOR_BYTES,
            keep: keep.unwrap_or(KEEP),
        })
    }

    /// The place for messages.
    pub(crate) fn place(&self) -> String {
        format!("s3://{}/{}", self.bucket, self.prefix)
    }
}

/// Whether a bucket or a part of a prefix needs no escapes.
fn is_plain(part: &str) -> bool {
    let is_name = !matches!(part, "" | "." | "..");
    is_name && part.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

fn owned(fields: &Fields<'_>, key: &str) -> Option<String> {
    fields.text(key).map(str::to_owned)
}

fn path(fields: &Fields<'_>, key: &'static str) -> Result<Option<PathBuf>, S3Error> {
    match owned(fields, key).map(PathBuf::from) {
        // The server and its successors may have other working directories.
        Some(path) if !path.is_absolute() => Err(S3Error::RelativePath { key, path }),
        path => Ok(path),
    }
}

/// A size above zero in whole sectors.
fn whole(text: &str) -> Option<u64> {
    size_bytes(text).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(SECTOR_BYTES))
}

/// Whether this is an address of a store: scheme, host and port, and no secret.
fn is_endpoint(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    rest.is_some_and(|rest| {
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        !rest.is_empty() && !rest.contains(['@', '/', '?', '#', ' '])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    #[test]
    fn names_are_parsed() {
        let name = S3Name::parse("s3://b/vm/1").unwrap();
        assert_eq!((&*name.bucket, &*name.prefix, name.size_bytes), ("b", "vm/1", None));
        assert_eq!((name.object_sectors, name.buffer_sectors), (32 << 10, 128 << 10));
        let name = S3Name::parse(
            "s3://b/v?size=1GiB&grow=on&endpoint=http://127.0.0.1:9000&region=eu&object=32MiB\
             &credentials=/etc/c&profile=p&ca=/etc/ca.pem&keep=10s",
        )
        .unwrap();
        assert_eq!(name.size_bytes, Some(1 << 30));
        assert_eq!(name.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(name.credentials, Some(("/etc/c".into(), "p".into())));
        assert!(name.grow);
        assert_eq!(name.addressing, None);
        let name = S3Name::parse("s3://b/v?addressing=virtual").unwrap();
        assert_eq!(name.addressing, Some(Addressing::Virtual));
        let name = S3Name::parse("s3://b/v?object=32MiB&keep=10s").unwrap();
        // A place in an object has 16 bits.
        assert_eq!(name.object_sectors, SECTORS_MAX);
        assert_eq!((name.buffer_sectors, name.keep), (256 << 10, Duration::from_secs(10)));
        assert_eq!(name.place(), "s3://b/v");
    }

    #[test]
    fn malformed_names_are_refused() {
        for (text, part) in [
            ("s3:b/v", "write s3://BUCKET/PREFIX"),
            ("s3://b", "write s3://BUCKET/PREFIX"),
            ("s3://b/", "write s3://BUCKET/PREFIX"),
            ("s3:///v", "write s3://BUCKET/PREFIX"),
            ("s3://b/v//w", "write s3://BUCKET/PREFIX"),
            ("s3://b/../w", "write s3://BUCKET/PREFIX"),
            ("s3://key:secret@b/v", "write s3://BUCKET/PREFIX"),
            ("s3://b/v?size=1000", "write it like 100GiB"),
            ("s3://b/v?size=0", "write it like 100GiB"),
            ("s3://b/v?object=64MiB", "from 1MiB to 32MiB"),
            ("s3://b/v?buffer=16MiB", "at least two objects"),
            ("s3://b/v?endpoint=host:9000", "http://HOST:PORT"),
            ("s3://b/v?endpoint=http://k:s@host", "http://HOST:PORT"),
            ("s3://b/v?addressing=host", "write it like virtual, or path"),
            ("s3://b/v?credentials=c", "absolute path"),
            ("s3://b/v?profile=p", "add credentials="),
            ("s3://b/v?secret=x", "the options are size, grow"),
        ] {
            let message = S3Name::parse(text).unwrap_err().explained();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
