{{- /* Name of the operator's objects. */}}
{{- define "tpujob.name" -}}
{{- if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-operator" .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tpujob.selector" -}}
app.kubernetes.io/name: tpujob-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tpujob.labels" -}}
{{ include "tpujob.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tpujob.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tpujob.name" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "tpujob.image" -}}
{{- default (printf "tpujob/operator:%s" .Chart.AppVersion) .Values.image.reference }}
{{- end }}

{{- define "tpujob.trainerImage" -}}
{{- default (printf "tpujob/trainer:%s" .Chart.AppVersion) .Values.trainer.image }}
{{- end }}

{{- define "tpujob.keySecret" -}}
{{- default (printf "%s-key" (include "tpujob.name" .)) .Values.operatorKey.existingSecret }}
{{- end }}
