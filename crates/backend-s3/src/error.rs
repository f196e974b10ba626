//! Errors of opening a volume.

use crate::credentials::FileError;
use forebay_backend::SpecError;
use forebay_http::RootsError;
use forebay_objects::Damaged;
use forebay_types::{Blame, Fault, Remedy, Size};
use std::io;
use std::path::PathBuf;

/// Why a volume on S3 cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum S3Error {
    /// The name is malformed.
    #[error("'{name}' is not the name of a volume on S3")]
    Name {
        /// The name, as given.
        name: String,
    },
    /// An option in the name is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The address of the store is malformed.
    #[error("'{endpoint}' is not the address of a store")]
    Endpoint {
        /// The address, as given.
        endpoint: String,
    },
    /// The bucket cannot be a part of the host's name.
    #[error("'{host}' is not the name of a host, and addressing=virtual needs one")]
    Addressing {
        /// What the name would be.
        host: String,
    },
    /// A path in the name is relative.
    #[error("'{}' is not the absolute path of a file, for {key}", path.display())]
    RelativePath {
        /// The option.
        key: &'static str,
        /// The path, as given.
        path: PathBuf,
    },
    /// The file with credentials cannot be used.
    #[error("no credentials in {}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The certificates of authorities cannot be used.
    #[error("cannot read certificates from {}", path.display())]
    Roots {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The settings in the environment do not fit.
    #[error("the settings for {place} cannot be used: {text}")]
    Settings {
        /// Bucket and prefix.
        place: String,
        /// What is wrong.
        text: String,
    },
    /// Threads for requests cannot be started.
    #[error("cannot start threads for requests to a store")]
    Threads {
        /// The system's error.
        source: io::Error,
    },
    /// The store does not answer, or only with errors.
    #[error("the store of {place} ({endpoint}) does not answer as it should: {text}")]
    Store {
        /// Bucket and prefix.
        place: String,
        /// The address.
        endpoint: String,
        /// What it said last.
        text: String,
    },
    /// The store refuses the credentials.
    #[error("the store of {place} ({endpoint}) refuses the request: {text}")]
    Denied {
        /// Bucket and prefix.
        place: String,
        /// The address.
        endpoint: String,
        /// What it said.
        text: String,
    },
    /// There are no credentials.
    #[error("there are no credentials for {place}, and this machine has no role with some: {text}")]
    NoKeys {
        /// Bucket and prefix.
        place: String,
        /// Why the machine has none.
        text: String,
    },
    /// There is no such bucket.
    #[error("there is no bucket '{bucket}' in the store at {endpoint}")]
    Bucket {
        /// The bucket.
        bucket: String,
        /// The address.
        endpoint: String,
    },
    /// There is no volume.
    #[error("there is no volume at {place}")]
    NoVolume {
        /// Bucket and prefix.
        place: String,
    },
    /// The volume has another size.
    #[error("the volume at {place} has {}, and the name says {}", Size(*.found), Size(*.wanted))]
    OtherSize {
        /// Bucket and prefix.
        place: String,
        /// Its size in bytes.
        found: u64,
        /// The size in the name.
        wanted: u64,
    },
    /// The store does not keep the conditions of requests.
    #[error("the store at {endpoint} {what}, so two servers could write one volume")]
    Conditions {
        /// The address.
        endpoint: String,
        /// What it does.
        what: &'static str,
    },
    /// An object of the volume is damaged.
    #[error("the object {object} of {place} is damaged")]
    Damaged {
        /// Bucket and prefix.
        place: String,
        /// Its name below the prefix.
        object: String,
        /// What is wrong.
        source: Damaged,
    },
    /// An object of the volume is missing.
    #[error("the object {object} of {place} is missing")]
    Missing {
        /// Bucket and prefix.
        place: String,
        /// Its name below the prefix.
        object: String,
    },
    /// Another server has the volume.
    #[error("the volume at {place} is in use by {owner}")]
    Owned {
        /// Bucket and prefix.
        place: String,
        /// The server.
        owner: String,
    },
    /// This process has the volume.
    #[error("the volume at {place} is in use here, as '{other}'")]
    OpenHere {
        /// Bucket and prefix.
        place: String,
        /// The name under which it is open.
        other: String,
    },
    /// Another server has opened the volume at the same time.
    #[error("another server has opened the volume at {place} in this moment")]
    Raced {
        /// Bucket and prefix.
        place: String,
    },
}

impl From<RootsError> for S3Error {
    fn from(error: RootsError) -> Self {
        Self::Roots { path: error.path, source: error.source }
    }
}

impl S3Error {
    pub(crate) fn credentials(path: PathBuf, error: FileError) -> Self {
        Self::Credentials { path, source: Box::new(error) }
    }
}

impl Fault for S3Error {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Name { .. } => Remedy::from("write s3://BUCKET/PREFIX")
                .or("s3://BUCKET/PREFIX?size=100GiB&endpoint=https://HOST:PORT"),
            Self::Spec(error) => error.remedy(),
            Self::Endpoint { .. } => {
                "write endpoint=http://HOST:PORT or https://HOST:PORT, without credentials".into()
            }
            Self::Addressing { .. } => "write addressing=path, or leave it out".into(),
            Self::RelativePath { .. } => "write an absolute path".into(),
            Self::Credentials { .. } => {
                "write aws_access_key_id and aws_secret_access_key into it, readable by the user \
                 of this program"
                    .into()
            }
            Self::Roots { .. } => "name a file with certificates: ca=/etc/ssl/store.pem".into(),
            Self::Settings { .. } => {
                "check the variables AWS_… of this program's environment".into()
            }
            Self::Threads { .. } => "raise the limit of processes or threads".into(),
            Self::Store { .. } => {
                "check the address (endpoint=), and that the store runs and can be reached".into()
            }
            Self::Denied { .. } => Remedy::from(
                "check the credentials, and that they may get, put, delete and list objects of the \
                 bucket",
            )
            .or("the region and the clock of this machine"),
            Self::NoKeys { .. } => Remedy::from(
                "name a file with aws_access_key_id and aws_secret_access_key: \
                 credentials=/etc/forebay/s3-credentials",
            )
            .or("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the server's environment"),
            Self::Bucket { .. } => Remedy::from("create it")
                .or("check the name")
                .or("addressing=virtual, for a store that wants the bucket in the host's name"),
            Self::NoVolume { place } => {
                Remedy::from(format!("write {place}?size=100GiB to create one"))
                    .or("check bucket, prefix and endpoint")
            }
            Self::OtherSize { found, wanted, .. } if wanted > found => {
                Remedy::from(format!("write size={}", Size(*found)))
                    .or(format!("to make it larger, size={}&grow=on", Size(*wanted)))
            }
            Self::OtherSize { found, .. } => {
                format!("write size={}: a volume does not shrink", Size(*found)).into()
            }
            Self::Conditions { .. } => {
                "use a store with conditional writes (If-None-Match and If-Match), such as AWS S3, \
                 MinIO, or Ceph's gateway"
                    .into()
            }
            Self::Damaged { .. } | Self::Missing { .. } => Remedy::from(
                "restore the former version of the object, if the bucket keeps versions",
            )
            .or("restore the volume from a backup"),
            Self::Owned { .. } => Remedy::from("stop that server")
                .or("if it is gone, or is to give the volume up, add nofail=yes to the volume, \
                     and run `forebay takeover VOLUME`"),
            Self::OpenHere { .. } => "name another volume for one of the two".into(),
            Self::Raced { .. } => "try again, and it says which server".into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Name { .. }
            | Self::Spec(_)
            | Self::Endpoint { .. }
            | Self::Addressing { .. }
            | Self::RelativePath { .. }
            | Self::NoVolume { .. }
            | Self::OtherSize { .. } => Blame::Operator,
            _ => Blame::Environment,
        }
    }
}
