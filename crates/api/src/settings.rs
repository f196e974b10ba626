//! The settings of a volume, in requests and in the status. Names, values and descriptions come
//! from [`VOLUME_SETTINGS`]; the server parses values with the parser of the command line.

use forebay_types::{Setting, VOLUME_SETTINGS};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, Visitor},
    ser::SerializeMap,
};
use std::{collections::BTreeMap, fmt};
use utoipa::openapi::{
    ObjectBuilder, RefOr, Schema,
    schema::{AdditionalProperties, SchemaType, Type},
};
use utoipa::{PartialSchema, ToSchema};

/// Settings of a volume. A setting left out stays unchanged, or has its default in a new volume.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VolumeSettings(BTreeMap<&'static str, String>);

impl VolumeSettings {
    /// The settings and their values on the command line, in the order of [`VOLUME_SETTINGS`].
    pub fn pairs(&self) -> impl Iterator<Item = (&'static Setting, &str)> {
        let value = |setting: &Setting| self.0.get(setting.key).map(String::as_str);
        VOLUME_SETTINGS.iter().filter_map(move |setting| Some((setting, value(setting)?)))
    }
}

impl FromIterator<(&'static str, String)> for VolumeSettings {
    fn from_iter<T: IntoIterator<Item = (&'static str, String)>>(pairs: T) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl<const N: usize> From<[(&'static str, &str); N]> for VolumeSettings {
    fn from(pairs: [(&'static str, &str); N]) -> Self {
        pairs.into_iter().map(|(key, value)| (key, value.to_owned())).collect()
    }
}

impl Serialize for VolumeSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (setting, value) in self.pairs() {
            match setting.is_switch() {
                true => map.serialize_entry(&setting.field(), &(value == "yes"))?,
                false => map.serialize_entry(&setting.field(), value)?,
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for VolumeSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SettingFields)
    }
}

/// Deserializes a JSON object. Null is the same as a setting left out.
struct SettingFields;

impl<'de> Visitor<'de> for SettingFields {
    type Value = VolumeSettings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with settings of a volume")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VolumeSettings, A::Error> {
        let mut settings = BTreeMap::new();
        while let Some(field) = map.next_key::<String>()? {
            let found = VOLUME_SETTINGS.iter().find(|setting| setting.field() == field);
            let setting = found.ok_or_else(|| {
                let known: Vec<_> = VOLUME_SETTINGS.iter().map(Setting::field).collect();
                A::Error::custom(format_args!(
                    "unknown field `{field}`, expected one of {}",
                    known.join(", ")
                ))
            })?;
            let value = match setting.is_switch() {
                true => {
                    map.next_value::<Option<bool>>()?.map(|is| if is { "yes" } else { "no" }.into())
                }
                false => map.next_value::<Option<String>>()?,
            };
            if let Some(value) = value
                && settings.insert(setting.key, value).is_some()
            {
                return Err(A::Error::custom(format_args!("duplicate field `{field}`")));
            }
        }
        Ok(VolumeSettings(settings))
    }
}

impl PartialSchema for VolumeSettings {
    fn schema() -> RefOr<Schema> {
        let object = ObjectBuilder::new().schema_type(Type::Object).description(Some(
            "Settings of a volume. A setting left out stays unchanged, or has its default in a new \
             volume.",
        ));
        let object = VOLUME_SETTINGS
            .iter()
            .fold(object, |object, setting| object.property(setting.field(), property(setting)));
        object.additional_properties(Some(AdditionalProperties::FreeForm(false))).into()
    }
}

impl ToSchema for VolumeSettings {}

fn property(setting: &Setting) -> ObjectBuilder {
    let default = match setting.default {
        "" => String::new(),
        default => format!(" Default: {default}."),
    };
    let fixed = if setting.is_live { "" } else { " Fixed while the volume is served." };
    let kind = if setting.is_switch() { Type::Boolean } else { Type::String };
    let property = ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([kind, Type::Null]))
        .description(Some(format!("{}: {}.{default}{fixed}", setting.values, setting.help)));
    match setting.words() {
        Some(words) if !setting.is_switch() => property.enum_values(Some(words)),
        _ => property,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_an_object_with_a_field_for_each_setting() {
        let text = r#"{"read_only":true,"write_back_iops":"200"}"#;
        let settings: VolumeSettings = serde_json::from_str(text).unwrap();
        assert_eq!(settings, [("write-back-iops", "200"), ("read-only", "yes")].into());
        assert_eq!(serde_json::to_string(&settings).unwrap(), text);
        let none: VolumeSettings = serde_json::from_str(r#"{"mode":null}"#).unwrap();
        assert_eq!(none, VolumeSettings::default());
    }

    #[test]
    fn unknown_settings_and_wrong_types_are_refused() {
        for (text, part) in [
            (r#"{"prefetsch":true}"#, "unknown field `prefetsch`, expected one of mode, "),
            (r#"{"read-only":true}"#, "unknown field `read-only`"),
            (r#"{"prefetch":"yes"}"#, "expected a boolean"),
            (r#"{"write_back_iops":200}"#, "expected a string"),
            (r#"{"mode":"bypass","mode":"bypass"}"#, "duplicate field `mode`"),
            ("[]", "an object with settings"),
        ] {
            let error = serde_json::from_str::<VolumeSettings>(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
