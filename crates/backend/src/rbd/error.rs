//! Errors of opening an image.

use crate::SpecError;
use forebay_types::{Blame, Fault, Remedy};
use std::io;
use std::path::PathBuf;

/// Why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RbdError {
    /// The name is malformed.
    #[error("'{name}' is not the name of an image")]
    Name {
        /// The name, as given.
        name: String,
    },
    /// The path of the configuration file is relative.
    #[error("'{}' in '{name}' is not the absolute path of a configuration file", conf.display())]
    RelativeConf {
        /// The name, as given.
        name: String,
        /// The path in it.
        conf: PathBuf,
    },
    /// The options in the name are invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A library of Ceph cannot be loaded.
    #[error("cannot load {library}, a library of Ceph")]
    Library {
        /// Its file.
        library: &'static str,
        /// The error of the loader.
        source: libloading::Error,
    },
    /// A library of Ceph has another interface.
    #[error("{library} has version {found} of its interface, and version {wanted} is supported")]
    Version {
        /// Its file.
        library: &'static str,
        /// The version that it reports.
        found: String,
        /// The major version that the declarations are for.
        wanted: i32,
    },
    /// A library of Ceph is too old.
    #[error("{library} lacks the function {symbol}")]
    Symbol {
        /// Its file.
        library: &'static str,
        /// The function.
        symbol: &'static str,
    },
    /// The configuration file cannot be read.
    #[error("cannot read Ceph's configuration {conf}")]
    Conf {
        /// The file.
        conf: String,
        /// The system's error, or that of the library.
        source: io::Error,
    },
    /// No file has the key of the user.
    #[error("no file has the key of Ceph's user client.{user}: tried {tried}")]
    Keyring {
        /// The user.
        user: String,
        /// The files, with the error of each.
        tried: String,
    },
    /// The monitors do not accept the key.
    #[error("the cluster of {conf} refuses the key of client.{user}")]
    Refused {
        /// The configuration file.
        conf: String,
        /// The user.
        user: String,
        /// The error of the library.
        source: io::Error,
    },
    /// No monitor answers.
    #[error("no monitor of {conf} answers: tried {hosts}")]
    Monitors {
        /// The configuration file.
        conf: String,
        /// The addresses in it.
        hosts: String,
        /// The error of the library.
        source: io::Error,
    },
    /// There is no such pool.
    #[error("there is no pool '{pool}' in the cluster of {conf}")]
    Pool {
        /// The pool.
        pool: String,
        /// The configuration file.
        conf: String,
        /// How to list the pools.
        list: String,
    },
    /// There is no such image.
    #[error("there is no image '{place}' in the cluster of {conf}")]
    Image {
        /// Pool and image.
        place: String,
        /// The configuration file.
        conf: String,
        /// How to list the images of the pool.
        list: String,
    },
    /// The user may not use the image.
    #[error("client.{user} may not use the image '{place}'")]
    Denied {
        /// The user.
        user: String,
        /// Pool and image.
        place: String,
        /// The pool.
        pool: String,
    },
    /// The OSDs do not answer.
    #[error("the OSDs of '{place}' do not answer")]
    Osds {
        /// Pool and image.
        place: String,
    },
    /// The image cannot be locked.
    #[error("the image '{place}' has no feature exclusive-lock")]
    NoLock {
        /// Pool and image.
        place: String,
    },
    /// Another client has locked the image.
    #[error("the image '{place}' is locked by {owner}")]
    Locked {
        /// Pool and image.
        place: String,
        /// The client: its address in the cluster, and what is known of it.
        owner: String,
    },
    /// This process has opened the image.
    #[error("the image '{place}' is in use here, as '{other}'")]
    OpenHere {
        /// Pool and image.
        place: String,
        /// The name under which it is open.
        other: String,
    },
    /// The image or its pool overrides the setting without which a write is acknowledged before it
    /// is stored.
    #[error("rbd_cache is on for the image '{place}' by the configuration of its {level}")]
    Cached {
        /// Pool and image.
        place: String,
        /// What has the setting: `image` or `pool`.
        level: &'static str,
        /// The command that removes the setting.
        remove: String,
    },
    /// The size is zero, or not a multiple of the block size.
    #[error("the image '{place}' is {size_bytes} bytes, not a multiple of 512 above zero")]
    Size {
        /// Pool and image.
        place: String,
        /// Its size.
        size_bytes: u64,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread for the image '{place}'")]
    Thread {
        /// Pool and image.
        place: String,
        /// The system's error.
        source: io::Error,
    },
    /// Another failure.
    #[error("cannot {what} '{place}'")]
    Call {
        /// What has failed.
        what: &'static str,
        /// Pool and image.
        place: String,
        /// The error of the library.
        source: io::Error,
    },
}

impl Fault for RbdError {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Name { .. } => Remedy::from("write rbd:POOL/IMAGE")
                .or("rbd:POOL/NAMESPACE/IMAGE")
                .or("rbd:POOL/IMAGE@/etc/ceph/ceph.conf?user=USER"),
            Self::RelativeConf { .. } => "write it like rbd:POOL/IMAGE@/etc/ceph/ceph.conf".into(),
            Self::Spec(error) => error.remedy(),
            Self::Library { .. } => {
                "install librbd1 and librados2 of Ceph 16 or later, the packages with its libraries"
                    .into()
            }
            Self::Version { .. } => {
                Remedy::from("install the libraries of Ceph 16 or later that have this version")
                    .or("map the image with `rbd map`, and use its /dev/rbd device")
            }
            Self::Symbol { .. } => "install the libraries of Ceph 16 or later".into(),
            Self::Conf { .. } => Remedy::from(
                "make it a configuration of Ceph that the user of this program may read",
            )
            .or("name another one: rbd:POOL/IMAGE@/etc/ceph/ceph.conf"),
            Self::Keyring { user, .. } => format!(
                "store the key that `ceph auth get client.{user}` shows in one of them, readable \
                 by the user of this program"
            )
            .into(),
            Self::Refused { user, .. } => {
                format!("store the key that `ceph auth get client.{user}` shows in the keyring")
                    .into()
            }
            Self::Monitors { .. } => {
                "check mon_host in that file, and that the monitors run and can be reached".into()
            }
            Self::Pool { list, .. } | Self::Image { list, .. } => {
                format!("check the name: `{list}` lists them").into()
            }
            Self::Denied { user, pool, .. } => format!(
                "give it the rights: `ceph auth caps client.{user} mon 'profile rbd' osd 'profile \
                 rbd pool={pool}'`"
            )
            .into(),
            Self::Osds { .. } => {
                "check with `ceph -s` that the OSDs are up, and that they can be reached".into()
            }
            Self::NoLock { place } => {
                format!("enable it with `rbd feature enable {place} exclusive-lock`").into()
            }
            Self::Locked { .. } => Remedy::from("stop that client")
                .or("take it over with `forebay takeover VOLUME`, if it is to be served here"),
            Self::OpenHere { .. } => "name another image for one of the two".into(),
            Self::Cached { remove, .. } => {
                format!("remove the setting with `{remove}`: Forebay is the cache").into()
            }
            Self::Size { .. } => "resize it with `rbd resize`".into(),
            Self::Thread { .. } => "raise the limit of processes or threads".into(),
            Self::Call { .. } => "check with `ceph -s` that the cluster is healthy".into(),
        }
    }

    fn blame(&self) -> Blame {
        match self {
            Self::Name { .. } | Self::RelativeConf { .. } | Self::Spec(_) => Blame::Operator,
            _ => Blame::Environment,
        }
    }
}
