//! Names of images: `rbd:POOL[/NAMESPACE]/IMAGE[@CONF][?user=USER]`.

use super::RbdError;
use crate::spec::{Fields, percent_decode};
use std::path::PathBuf;

/// The user of Ceph's own programs, if they are given none.
const USER: &str = "admin";

/// An image of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RbdName {
    pub(super) pool: String,
    /// The namespace in the pool; empty for the default one.
    pub(super) namespace: String,
    pub(super) image: String,
    pub(super) cluster: ClusterName,
}

/// A cluster, and the user that connects to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterName {
    /// The configuration file; `None` for the one that Ceph's programs find by themselves.
    pub(super) conf: Option<PathBuf>,
    /// The user, without `client.` before it.
    pub(super) user: String,
}

impl RbdName {
    /// Parses a name.
    ///
    /// # Errors
    /// If it is malformed.
    pub(super) fn parse(name: &str) -> Result<Self, RbdError> {
        let malformed = RbdError::Name { name: name.to_owned() };
        let Some(rest) = name.strip_prefix("rbd:") else { return Err(malformed) };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let fields = Fields::parse("rbd", options, '&', &["user"])?;
        let user = fields.text("user").unwrap_or(USER);
        let user = user.strip_prefix("client.").unwrap_or(user).to_owned();
        let (place, conf) = match rest.split_once('@') {
            Some((place, conf)) => (place, Some(PathBuf::from(percent_decode(conf)?))),
            None => (rest, None),
        };
        // The server and its successors may have other working directories.
        if let Some(conf) = conf.as_ref().filter(|conf| !conf.is_absolute()) {
            return Err(RbdError::RelativeConf { name: name.to_owned(), conf: conf.clone() });
        }
        let parts: Result<Vec<String>, _> = place.split('/').map(percent_decode).collect();
        let (pool, namespace, image) = match &parts?[..] {
            [pool, image] => (pool.clone(), String::new(), image.clone()),
            [pool, namespace, image] if !namespace.is_empty() => {
                (pool.clone(), namespace.clone(), image.clone())
            }
            _ => return Err(malformed),
        };
        if pool.is_empty() || image.is_empty() || user.is_empty() {
            return Err(malformed);
        }
        Ok(Self { pool, namespace, image, cluster: ClusterName { conf, user } })
    }

    /// The image as Ceph's programs name it.
    pub(super) fn place(&self) -> String {
        match &*self.namespace {
            "" => format!("{}/{}", self.pool, self.image),
            namespace => format!("{}/{namespace}/{}", self.pool, self.image),
        }
    }
}

impl ClusterName {
    /// The configuration file, for messages.
    pub(super) fn conf_text(&self) -> String {
        match &self.conf {
            Some(conf) => conf.display().to_string(),
            None => "/etc/ceph/ceph.conf".to_owned(),
        }
    }

    /// The error for a configuration file that cannot be used.
    pub(super) fn conf_error(&self, source: std::io::Error) -> RbdError {
        RbdError::Conf { conf: self.conf_text(), source }
    }

    /// The options with which a program of Ceph connects as this user, with a space behind them.
    pub(super) fn command_options(&self) -> String {
        let conf = self.conf.as_ref().map(|conf| format!("-c {} ", conf.display()));
        let user = (self.user != USER).then(|| format!("--id {} ", self.user));
        format!("{}{}", conf.unwrap_or_default(), user.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::Fault;

    fn name(pool: &str, namespace: &str, image: &str, conf: Option<&str>, user: &str) -> RbdName {
        let [pool, namespace, image, user] = [pool, namespace, image, user].map(str::to_owned);
        let cluster = ClusterName { conf: conf.map(PathBuf::from), user };
        RbdName { pool, namespace, image, cluster }
    }

    #[test]
    fn names_are_parsed() {
        for (text, expected) in [
            ("rbd:p/i", name("p", "", "i", None, "admin")),
            ("rbd:p/n/i", name("p", "n", "i", None, "admin")),
            ("rbd:p/i@/etc/b.conf", name("p", "", "i", Some("/etc/b.conf"), "admin")),
            ("rbd:p/i@/x@y?user=vm", name("p", "", "i", Some("/x@y"), "vm")),
            ("rbd:p/i?user=client.vm", name("p", "", "i", None, "vm")),
            ("rbd:p%2Fq/i%40j@/a%3Fb", name("p/q", "", "i@j", Some("/a?b"), "admin")),
        ] {
            assert_eq!(RbdName::parse(text).unwrap(), expected, "{text}");
        }
        let named = RbdName::parse("rbd:p/n/i@/c?user=vm").unwrap();
        assert_eq!(named.place(), "p/n/i");
        assert_eq!(named.cluster.command_options(), "-c /c --id vm ");
    }

    #[test]
    fn malformed_names_are_refused() {
        for text in
            ["rbd:", "rbd:p", "rbd:p/", "rbd:/i", "rbd:p//i", "rbd:p/n/i/x", "rbd:p/i?user=client."]
        {
            assert!(matches!(RbdName::parse(text), Err(RbdError::Name { .. })), "{text}");
        }
        for (text, part) in [
            ("rbd:p/i@ceph.conf", "/etc/ceph/ceph.conf"),
            ("rbd:p/i@", "not the absolute path"),
            ("rbd:p/i?usr=x", "the options are user"),
            ("rbd:p/i%00", "NUL"),
        ] {
            let message = RbdName::parse(text).unwrap_err().explained();
            assert!(message.contains(part), "{message}");
        }
    }
}
