//! What is wrong with the server and its volumes, and what to do about it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How serious an alert is, most serious first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Data is at risk, or requests fail.
    Error,
    /// Something does not work as configured.
    #[default]
    Warning,
}

impl Severity {
    /// Both, the more serious first.
    pub const ALL: [Self; 2] = [Self::Error, Self::Warning];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Alert {
    /// How serious it is.
    pub severity: Severity,
    /// What it is about: `volume`, `journal`, `vault`, `UPS`, `power`, `memory`, `log`, `upgrade`,
    /// `configuration`, `host`, `site`.
    pub kind: String,
    /// The volume or device, if there can be several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What is wrong.
    pub text: String,
    /// What to do; null if the text says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Whether it is about other hosts of the site: each server that watches them says it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_site: bool,
}

impl Alert {
    /// An alert without a remedy. The name may be empty.
    pub fn new(severity: Severity, kind: &str, name: &str, text: impl Into<String>) -> Self {
        let name = Some(name.to_owned()).filter(|name| !name.is_empty());
        Self { severity, kind: kind.to_owned(), name, text: text.into(), ..Self::default() }
    }

    /// The alert with what to do.
    #[must_use]
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// The alert, about other hosts of the site.
    #[must_use]
    pub fn of_site(self) -> Self {
        Self { of_site: true, ..self }
    }

    /// Whether it is about this volume.
    pub fn is_about(&self, volume: &str) -> bool {
        self.kind == "volume" && self.name.as_deref() == Some(volume)
    }
}
